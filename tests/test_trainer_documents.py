"""The programs in the documents run as they are printed (with fewer epochs)."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "document",
    [
        "README.md", "README.zh-CN.md", "docs/training-loop.md", "docs/mixed-precision.md", "docs/models.md", "docs/memory.md",
        "docs/memory.zh-CN.md",
    ],
)  # fmt: skip
def test_the_programs_in_a_document_run(document, tmp_path, monkeypatch, capsys):
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(encoding="utf-8"), re.DOTALL)
    text = "\n".join(blocks).replace("range(10)", "range(2)").replace("epochs=20", "epochs=2")
    exec(compile(text, document, "exec"), {})
    assert "%" in capsys.readouterr().out


def programs(document):
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(encoding="utf-8"), re.DOTALL)


def test_each_program_of_looking_inside_stands_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    explained, profiled = programs("docs/looking-inside.md")
    exec(compile(explained, "explained", "exec"), {})
    assert "as recorded" in capsys.readouterr().out and (tmp_path / "page.html").exists()
    exec(compile(profiled, "profiled", "exec"), {})
    assert "of limit" in capsys.readouterr().out and (tmp_path / "trace.json").exists()
    chinese = programs("docs/looking-inside.zh-CN.md")
    assert [re.sub(r" *#.*", "", p) for p in chinese] == [re.sub(r" *#.*", "", p) for p in (explained, profiled)]


def test_the_two_readmes_show_the_same_program_and_commands():
    def code(name):
        blocks = re.findall(r"```\w+\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)
        return [re.sub(r"#.*|print\(.*", "", b) for b in blocks]

    assert code("README.md") == code("README.zh-CN.md")
