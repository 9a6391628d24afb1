"""Dropout (Srivastava et al. 2014).  ``inplace=True`` writes the result to the input and returns it."""

from __future__ import annotations

from lezero.ops.dropout import dropout as _dropout
from lezero.runtime import random_key
from lezero.runtime.recorder import record
from lezero.tensor import Tensor, ones


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """In training, zero with probability `p` and ``x / (1 - p)`` otherwise."""
    check_probability("dropout", p)
    if not training or p == 0.0:
        return input
    return placed(record(_dropout, (input, *random_key()), (float(p),)), input, inplace)


def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels of (batch, channels, length) or (channels, length) dropped.

    In `training`, each with probability `p`; the others are divided by ``1 - p``.
    """
    return _channels("dropout1d", input, p, training, inplace, (2, 3))


def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels of (batch, channels, height, width) or without batch dropped (Tompson et al. 2015).

    In `training`, each with probability `p`; the others are divided by ``1 - p``.
    """
    return _channels("dropout2d", input, p, training, inplace, (3, 4))


def dropout3d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels of (batch, channels, depth, height, width) or without batch dropped.

    In `training`, each with probability `p`; the others are divided by ``1 - p``.
    """
    return _channels("dropout3d", input, p, training, inplace, (4, 5))


def _channels(name: str, x: Tensor, p: float, training: bool, inplace: bool, ndims: tuple[int, int]) -> Tensor:
    check_probability(name, p)
    if x.ndim not in ndims:
        raise ValueError(
            f"{name}: an input of {ndims[1]} dimensions (or {ndims[0]}, without a batch) is needed, got shape {tuple(x.shape)}"
        )
    if not training or p == 0.0:
        return x
    lead = x.shape[: x.ndim - ndims[0] + 1]  # (batch,) channels
    return placed(x * dropout(ones(*lead, *(1,) * (ndims[0] - 1), dtype=x.dtype), p), x, inplace)


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Dropout that keeps mean and variance behind SELU (Klambauer et al. 2017): in `training`, each with probability `p`."""
    return _alpha("alpha_dropout", input, p, training, inplace, tuple(input.shape))


def feature_alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """The same for whole channels of (batch, channels, ...)."""
    if input.ndim < 2 and training and p:
        raise ValueError(
            f"feature_alpha_dropout: an input (batch, channels, ...) is needed, got shape {tuple(input.shape)}"
        )
    shape = (*input.shape[:2], *(1,) * (input.ndim - 2))
    return _alpha("feature_alpha_dropout", input, p, training, inplace, shape)


def _alpha(name: str, input: Tensor, p: float, training: bool, inplace: bool, shape: tuple[int, ...]) -> Tensor:
    """`shape` has an extent for each number drawn, and 1 along what is dropped together."""
    from lezero.tensor import rand, where

    check_probability(name, p)
    if not training or p == 0.0:
        return input
    negative = -1.7580993408473766  # -scale · alpha of SELU
    a = ((1 - p) * (1 + p * negative**2)) ** -0.5 if p < 1 else 0.0
    kept = rand(shape) >= p
    return placed(where(kept, input, negative) * a - a * p * negative, input, inplace)


def check_probability(name: str, p: float) -> None:
    try:
        fits = 0.0 <= p <= 1.0
    except TypeError:
        raise TypeError(f"{name}: p is a number, got {p!r}") from None
    if not fits:
        raise ValueError(f"{name}: p is a probability between 0 and 1, got {p}")


def placed(value: Tensor, input: Tensor, inplace: bool) -> Tensor:
    """`value`, written to the `input` it comes from if that is asked for."""
    return input._set(value) if inplace else value
