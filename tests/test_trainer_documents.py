"""The programs in the documents run as they are printed (with fewer epochs)."""

import importlib.util
import re
from pathlib import Path

import pytest

import lezero

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "document",
    [
        "README.md", "README.zh-CN.md", "docs/training-loop.md", "docs/mixed-precision.md", "docs/models.md", "docs/memory.md",
        "docs/memory.zh-CN.md", "docs/training-loop.zh-CN.md", "docs/mixed-precision.zh-CN.md", "docs/models.zh-CN.md",
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


TRANSLATED = sorted(p.name.removesuffix(".zh-CN.md") for p in (ROOT / "docs").glob("*.zh-CN.md"))


def test_every_page_for_users_is_there_in_chinese():
    assert {p.stem for p in (ROOT / "docs").glob("*.md") if "zh-CN" not in p.name} - {"design", "coverage"} == set(
        TRANSLATED
    )


@pytest.mark.parametrize("name", TRANSLATED)
def test_a_page_and_its_translation_have_the_same_parts(name):
    texts = [(ROOT / "docs" / f"{name}{ending}").read_text(encoding="utf-8") for ending in (".md", ".zh-CN.md")]
    assert f"]({name}.zh-CN.md)" in texts[0] and f"]({name}.md)" in texts[1]
    if name == "performance":  # a summary, which links to the tables of the whole
        return

    def parts(text):
        lines = re.sub(r"```.*?```", "", text, flags=re.DOTALL).splitlines()
        return [re.match(r"(#*|\||-|\S?)", line)[0] for line in lines if line[:1] in ("#", "|", "-")]

    def code(text):
        return [re.sub(r" *#.*|print\(.*", "", b) for b in re.findall(r"```\w+\n(.*?)```", text, re.DOTALL)]

    assert parts(texts[0]) == parts(texts[1]) and code(texts[0]) == code(texts[1])


def anchors(document):
    """What the headings of a page are called in links, as GitHub does it."""
    found = re.findall(r"^#+ (.*)", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("document", [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")], ids=lambda p: p.name)
def test_links_between_documents_lead_somewhere(document):
    for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_two_readmes_show_the_same_program_and_commands():
    def code(name):
        blocks = re.findall(r"```\w+\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)
        return [re.sub(r"#.*|print\(.*", "", b) for b in blocks]

    assert code("README.md") == code("README.zh-CN.md")


FILES = [p.relative_to(ROOT).as_posix() for p in ROOT.rglob("*.*") if ".git" not in p.parts]
DOCUMENTS = [*ROOT.glob("*.md"), *(p for p in (ROOT / "docs").glob("*.md") if p.stem != "coverage")]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_files_and_names_that_a_document_speaks_of_are_there(document):
    quoted = re.findall(r"`([^`\n]+)`", document.read_text(encoding="utf-8"))
    for text in quoted:
        for file in re.findall(r"[\w./-]+\.(?:py|md|toml|html|css|js)\b", text):
            assert any(f"/{f}".endswith(f"/{file}") for f in FILES), file
        if re.fullmatch(r"[a-z_/]+/", text):
            assert any(f"/{text}" in f"/{f}" for f in FILES), text
        for name in re.findall(r"(?<![\w\"./])(?:lz|lezero)(?:\.[A-Za-z_]\w*)+", text):
            assert resolved(name), name


def resolved(name):
    """Whether a dotted name is there: something in a module, or a module."""
    found = lezero
    for part in name.split(".")[1:]:
        if not hasattr(found, part):
            try:
                return importlib.util.find_spec(f"{found.__name__}.{part}") is not None
            except ModuleNotFoundError:  # which says what may be meant
                return False
        found = getattr(found, part)
    return True


def test_a_name_that_is_not_there_is_found_out():
    assert resolved("lezero.nn.utils.parametrize") and resolved("lz.optim.AdamW")
    assert not resolved("lz.nn.Lineal") and not resolved("lezero.nothing")
