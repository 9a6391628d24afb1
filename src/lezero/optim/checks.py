"""What hyper-parameters may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def not_negative(optimizer: str, group: Mapping[str, Any], *names: str) -> None:
    """Raise, naming the hyper-parameter, for one that is no number (TypeError), or negative or NaN (ValueError)."""
    for key in names:
        value = group[key]
        if not _holds(lambda v=value: v >= 0.0, f"{optimizer}: {key} is a number, got {value!r}"):
            raise ValueError(f"{optimizer}: {key} must not be negative, got {value}")


def two_betas(optimizer: str, betas: Any) -> None:
    """Raise for anything but two numbers from 0 to below 1."""
    wrong = f"{optimizer}: betas are two numbers from 0 to below 1, got {betas!r}"
    if not _holds(lambda: len(betas) == 2 and all(0.0 <= b < 1.0 for b in betas), wrong):
        raise ValueError(wrong)


def _holds(condition: Any, otherwise: str) -> bool:
    try:
        return bool(condition())
    except TypeError:
        raise TypeError(otherwise) from None
