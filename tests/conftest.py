"""What every test runs under: poisoned arena memory, verified passes, and compiled kernels kept between runs.

Knobs
-----
LEZERO_TEST_EXAMPLES : how many inputs each property draws (default 2; 50 for an evening)
LEZERO_TEST_CACHE : folder for compiled kernels (default: inside pytest's own cache, so that a second run compiles nothing)
"""

from __future__ import annotations

import os
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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is slow, unless marks were chosen on the command line."""
    if config.getoption("-m"):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
