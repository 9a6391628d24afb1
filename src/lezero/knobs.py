"""Environment variables that choose how LeZero runs: read and checked in one way."""

from __future__ import annotations

import os


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
