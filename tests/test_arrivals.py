"""What is done when another module is imported."""

import sys

import pytest

from lezero.arrivals import when_imported


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Two modules nobody has imported, one of which fails."""
    (tmp_path / "arriving_well.py").write_text("value = 1")
    (tmp_path / "arriving_badly.py").write_text("raise ImportError('not today')")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("arriving_well", "arriving_badly"):
        sys.modules.pop(name, None)


def test_what_waits_is_done_once_and_sees_the_module(modules):
    seen = []
    when_imported("arriving_well", lambda: seen.append(sys.modules["arriving_well"].value))
    assert seen == []
    import arriving_well  # noqa: F401

    assert seen == [1]
    when_imported("arriving_well", lambda: seen.append(2))  # it is there
    assert seen == [1, 2]


def test_a_module_that_fails_or_is_not_there_is_waited_for(modules, tmp_path):
    seen = []
    for name in ("arriving_badly", "arriving_never"):
        when_imported(name, lambda name=name: seen.append(name))
        for _ in range(2):
            with pytest.raises(ImportError):
                __import__(name)
    assert seen == []
    (tmp_path / "arriving_badly.py").write_text("value = 123456")
    import arriving_badly  # noqa: F401

    assert seen == ["arriving_badly"]
