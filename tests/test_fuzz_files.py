"""A few changed files of every format in every run; ``tests/fuzz_files.py`` reads them for as long as it is told to."""

import signal
from itertools import islice

import pytest

from fuzz_files import files, formats, offence

pytest.importorskip("onnx", reason="needed to read the files: pip install 'lezero[onnx]'")
pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="POSIX alarms")

COUNT = 400


@pytest.mark.parametrize("name", formats())
def test_changed_files_are_read_or_refused(name):
    for seed, content in islice(files(name), COUNT if name != "index" else COUNT // 10):
        error = offence(name, content)
        assert error is None, (seed, repr(error))


@pytest.mark.parametrize("name", formats())
def test_what_is_changed_is_read_as_it_was(name):
    """Otherwise refusals would say nothing."""
    found = formats()[name]
    for seed in found.seeds():
        found.read(found.wrap(seed))


def test_an_error_of_another_kind_and_an_endless_loop_are_found(monkeypatch):
    def endless(_):
        while True:
            pass

    def wrong(_):
        raise KeyError("x")

    import fuzz_files

    sound = formats()["npz"]
    for read, kind in ((wrong, KeyError), (endless, fuzz_files.Slow)):
        monkeypatch.setattr(fuzz_files, "formats", lambda read=read: {"npz": sound._replace(read=read)})
        assert isinstance(offence("npz", b"", seconds=1), kind)
