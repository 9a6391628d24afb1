"""``docs/coverage.md`` says what is there, and as much is there as is promised."""

import importlib.util
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
strict = pytest.importorskip("array_api_strict")

ROOT = Path(__file__).resolve().parent.parent
_spec = importlib.util.spec_from_file_location("coverage_page", ROOT / "tools" / "coverage_page.py")
coverage_page = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(coverage_page)

PAGE = (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8")
NOT_YET: dict[str, int] = {}
"""What is there of sections whose promise is not reached yet, in per cent."""

# The names of another version are other names.
_ABOUT = (f"# What there is of PyTorch {coverage_page.version()}\n", f"\n## Array API {strict.__array_api_version__}\n")
of_this_version = pytest.mark.skipif(
    not all(title in PAGE for title in _ABOUT),
    reason=f"docs/coverage.md is about other versions than the PyTorch {coverage_page.version()} and array-api-strict installed",
)


@of_this_version
def test_the_page_is_up_to_date():
    assert coverage_page.page() == PAGE, "run: python tools/coverage_page.py docs/coverage.md"


@of_this_version
@pytest.mark.parametrize("section", coverage_page.SECTIONS, ids=lambda s: s.title)
def test_as_much_is_there_as_is_promised(section):
    found = coverage_page.coverage(section).per_cent
    wanted = NOT_YET.get(section.title, section.promised)
    assert found >= wanted, f"{found:.1f} % of {section.title}, {wanted} % promised"


@of_this_version
def test_all_optimizers_but_the_sparse_one_are_there():
    (section,) = (s for s in coverage_page.SECTIONS if s.title == "torch.optim")
    assert not coverage_page.coverage(section).missing


def test_a_reason_for_a_name_that_is_there_is_an_error():
    section = coverage_page.SECTIONS[2]._replace(absent={"for no reason": "sum"})
    with pytest.raises(ValueError, match="sum cannot be absent on purpose"):
        coverage_page.coverage(section)
