"""What every test runs under: poisoned arena memory, verified passes, and compiled kernels kept between runs.

Knobs
-----
LEZERO_TEST_EXAMPLES : how many inputs each property draws (default 2; 50 for an evening)
LEZERO_TEST_CAPTURED : 1 runs the operations of test_backend_ops.py as captured functions
LEZERO_TEST_PART : "k/n" runs every n-th test, from the k-th on
LEZERO_TEST_CACHE : folder for compiled kernels (default: inside pytest's own cache, so that a second run compiles nothing)
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

EXAMPLES = int(os.environ.get("LEZERO_TEST_EXAMPLES", "2"))

# before lezero is imported: an arena reads its knob once
os.environ.setdefault("LEZERO_POISON_ARENA", "1")
os.environ.setdefault("LEZERO_VERIFY", "1")

settings.register_profile(
    "lezero",
    max_examples=EXAMPLES,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # every step of shrinking would compile kernels
    deadline=None,  # the first example of a kernel compiles it
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
settings.load_profile("lezero")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job, which children inherit
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if "LEZERO_CACHE_DIR" in os.environ:
        return
    chosen = os.environ.get("LEZERO_TEST_CACHE")
    cache = getattr(config, "cache", None)
    folder = Path(chosen) if chosen else cache.mkdir("lezero-kernels") if cache is not None else None
    if folder is not None:
        os.environ["LEZERO_CACHE_DIR"] = str(folder)


@pytest.fixture(autouse=True)
def same_random_numbers_in_every_test() -> None:
    """Whichever tests run before, and in whatever order."""
    import numpy as np

    import lezero as lz

    lz.manual_seed(0)
    np.random.seed(0)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Initial values of models stay zero: those of a large model that is dropped would all be drawn at the next run."""
    from lezero.nn import init

    for name in ("uniform_", "normal_", "trunc_normal_", "kaiming_normal_", "xavier_uniform_"):
        monkeypatch.setattr(init, name, lambda t, *args, **kwargs: t)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is slow, unless marks were chosen on the command line, and what belongs to other parts."""
    chosen = items if config.getoption("-m") else [item for item in items if not item.get_closest_marker("slow")]
    part = os.environ.get("LEZERO_TEST_PART")
    if part:
        k, n = map(int, part.split("/"))
        chosen = chosen[k::n]
    kept = {id(item) for item in chosen}
    left_out = [item for item in items if id(item) not in kept]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = chosen


@pytest.fixture
def nothing_compiled() -> Iterator[None]:
    """Runs are NumPy's: for tests of what a program means, whose many forms would take long to compile."""
    from lezero.hal.registry import get_backend, set_backend

    before = get_backend()
    set_backend("numpy")
    yield
    set_backend(before)
