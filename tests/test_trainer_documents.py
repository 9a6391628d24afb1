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


def test_the_two_readmes_show_the_same_program_and_commands():
    def code(name):
        blocks = re.findall(r"```\w+\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)
        return [re.sub(r"#.*|print\(.*", "", b) for b in blocks]

    assert code("README.md") == code("README.zh-CN.md")
