"""Environment variables that choose how LeZero runs: read and checked in one way."""

from __future__ import annotations

import os
import warnings
from functools import cache

from lezero.misspelt import close

KNOWN = (
    "LEZERO_BACKEND", "LEZERO_CACHE_DIR", "LEZERO_CACHE_LIMIT", "LEZERO_COMPILE_EFFORT", "LEZERO_COMPILE_WORKERS", "LEZERO_CPU", "LEZERO_NUM_THREADS",
    "LEZERO_PASSES", "LEZERO_POISON_ARENA", "LEZERO_TRACEBACK", "LEZERO_VERIFY",
)  # fmt: skip
_OTHERS = "LEZERO_TEST_"  # what the tests take


class KnobError(ValueError):
    """An environment variable holds what it cannot hold.  The message names it, its value and what it takes."""


def number(name: str, default: int, what: str, least: int, most: int) -> int:
    """The whole number in environment variable `name`; `default` where it is unset or empty.

    Raises
    ------
    KnobError
        If it is no number from `least` to `most`; `what` says what the number counts.
    """
    chosen = os.environ.get(name, "").strip()
    if not chosen:
        return default
    if not (chosen.isascii() and chosen.isdigit() and len(chosen) < 20 and least <= int(chosen) <= most):
        raise KnobError(f"{name}={chosen!r}: expected {what}, from {least} to {most:,}, for example {default}")
    return int(chosen)


def unknown() -> list[str]:
    """Variables that are set and begin with ``LEZERO_``, and that nothing reads."""
    return sorted(n for n in os.environ if n.startswith("LEZERO_") and n not in KNOWN and not n.startswith(_OTHERS))


@cache
def warn_of_unknown() -> None:
    """Warn of `unknown()` variables, once in a process."""
    for name in unknown():
        meant = [f"LEZERO_{n}" for n in close(name[7:], [k[7:] for k in KNOWN])]
        advice = f"did you mean {' or '.join(meant)}?" if meant else f"there are {', '.join(KNOWN)}"
        warnings.warn(f"the environment variable {name} changes nothing: {advice}", stacklevel=2)
