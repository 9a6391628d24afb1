"""Tensors as text: NumPy's layout of numbers, with what PyTorch says of a tensor behind them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from math import inf
from typing import Any

import numpy as np

from lezero.arguments import whole
from lezero.graph import dtype as dt


@dataclass(frozen=True)
class Options:
    """How tensors are printed; see :func:`set_printoptions`."""

    precision: int = 4
    threshold: float = 1000
    edgeitems: int = 3
    linewidth: int = 80
    sci_mode: bool | None = None


_PROFILES = {"default": Options(), "short": Options(precision=2, edgeitems=2), "full": Options(threshold=inf)}
_options = Options()


def set_printoptions(
    precision: int | None = None,
    threshold: float | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    profile: str | None = None,
    sci_mode: bool | None = None,
) -> None:
    """Say how tensors are printed; what is not given stays as it is.

    Parameters
    ----------
    precision : digits behind the point at most (4)
    threshold : number of elements above which only those at the edges are shown (1000)
    edgeitems : how many of them at each end of a dimension (3)
    linewidth : characters in a line (80)
    profile : "default", "short" (2 digits, 2 items) or "full" (all elements); where to begin
    sci_mode : True for powers of ten always, False for never; left out, numbers decide, as NumPy's do
    """
    global _options
    if profile is not None and profile not in _PROFILES:
        raise ValueError(f"set_printoptions: profile is one of {', '.join(map(repr, _PROFILES))}, got {profile!r}")
    given: dict[str, Any] = {"precision": precision, "edgeitems": edgeitems, "linewidth": linewidth}
    given = {name: whole(f"set_printoptions: {name}", n, 0) for name, n in given.items() if n is not None}
    if threshold is not None:
        given["threshold"] = threshold
    begin = _options if profile is None else _PROFILES[profile]
    _options = replace(begin, **given, sci_mode=sci_mode)


def get_printoptions() -> dict[str, Any]:
    """The options in force, as :func:`set_printoptions` takes them."""
    return {f.name: getattr(_options, f.name) for f in fields(_options)}


_PREFIX = "tensor("


def numbers(array: np.ndarray) -> str:
    """The elements, columns aligned, summarised where there are many."""
    o = _options
    if array.dtype == dt.bfloat16.numpy:
        array = array.astype(np.float32)
    powers = o.sci_mode is True and array.dtype.kind == "f"
    with np.printoptions(nanstr="nan", infstr="inf", legacy=False):  # type: ignore[arg-type]
        return np.array2string(
            array,
            max_line_width=o.linewidth,
            precision=o.precision,
            suppress_small=o.sci_mode is False,
            separator=", ",
            prefix=_PREFIX,
            threshold=o.threshold,  # type: ignore[arg-type]
            edgeitems=o.edgeitems,
            sign="-",
            floatmode="maxprec",
            formatter={"float_kind": _as_powers(array, o.precision)} if powers else {},
        )


def _as_powers(array: np.ndarray, precision: int) -> Callable[[Any], str]:
    """Numbers as 1.5000e+00, all of one width."""
    finite = np.abs(array[np.isfinite(array) & (array != 0)])
    long = finite.size > 0 and (float(finite.max()) >= 1e100 or float(finite.min()) < 1e-99)
    width = precision + 6 + bool(np.signbit(array).any()) + long if array.ndim else 0
    return lambda x: f"{x:{width}.{precision}e}"


def described(array: np.ndarray, words: list[str]) -> str:
    """``tensor(numbers, words)``, the words on a line of their own where the last one has no room."""
    text = _PREFIX + numbers(array)
    last = len(text) - text.rfind("\n") - 1
    for word in words:
        fits = last + len(word) + 3 <= _options.linewidth
        text += f", {word}" if fits else f",\n{' ' * len(_PREFIX)}{word}"
        last = last + len(word) + 2 if fits else len(_PREFIX) + len(word)
    return text + ")"
