"""Random numbers.  A node with a seed draws the same numbers at each call."""

from __future__ import annotations

from typing import Any

import numpy as np

import lezero as lz
from lezero.graph.dtype import DType, as_dtype
from lezero.onnx.program import numpy_dtype
from lezero.onnx.registry import Context, operator
from lezero.tensor import Tensor


def _generator(seed: float | None) -> Any:
    """A seed is a float: its bits start a stream, so that 0.25 and 0.5 start different ones."""
    return None if seed is None else lz.Generator(int(np.float32(seed).view(np.uint32)))


def _dtype(number: int | None, otherwise: DType) -> DType:
    return otherwise if number is None else as_dtype(numpy_dtype(number))


def _normal(shape: Any, dtype: DType, mean: float, scale: float, seed: float | None) -> Tensor:
    return (lz.randn(*shape, dtype=_wide(dtype), generator=_generator(seed)) * scale + mean).to(dtype)


def _uniform(shape: Any, dtype: DType, low: float, high: float, seed: float | None) -> Tensor:
    return (lz.rand(*shape, dtype=_wide(dtype), generator=_generator(seed)) * (high - low) + low).to(dtype)


def _wide(dtype: DType) -> DType:
    return lz.float64 if dtype is lz.float64 else lz.float32


@operator("RandomNormal", host=True)
def random_normal(
    _: Context, *, shape: list[int], dtype: int = 1, mean: float = 0.0, scale: float = 1.0, seed: float | None = None
) -> Tensor:
    return _normal(shape, _dtype(dtype, lz.float32), mean, scale, seed)


@operator("RandomUniform", host=True)
def random_uniform(
    _: Context, *, shape: list[int], dtype: int = 1, low: float = 0.0, high: float = 1.0, seed: float | None = None
) -> Tensor:
    return _uniform(shape, _dtype(dtype, lz.float32), low, high, seed)


@operator("RandomNormalLike")
def random_normal_like(
    _: Context, x: Tensor, *, dtype: int | None = None, mean: float = 0.0, scale: float = 1.0, seed: float | None = None
) -> Tensor:
    return _normal(x.shape, _dtype(dtype, x.dtype), mean, scale, seed)


@operator("RandomUniformLike")
def random_uniform_like(
    _: Context, x: Tensor, *, dtype: int | None = None, low: float = 0.0, high: float = 1.0, seed: float | None = None
) -> Tensor:
    return _uniform(x.shape, _dtype(dtype, x.dtype), low, high, seed)


@operator("Bernoulli", 15)
def bernoulli(_: Context, x: Tensor, *, dtype: int | None = None, seed: float | None = None) -> Tensor:
    """1 with the probabilities given."""
    return (lz.rand(*x.shape, dtype=_wide(x.dtype), generator=_generator(seed)) < x).to(_dtype(dtype, x.dtype))


@operator("Multinomial", 7)
def multinomial(_: Context, x: Tensor, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None) -> Tensor:
    """Classes drawn with the logarithms of probabilities given, [batch, sample_size]."""
    weights = lz.softmax(x.double(), -1)
    drawn = lz.multinomial(weights, sample_size, replacement=True, generator=_generator(seed))
    return drawn.to(_dtype(dtype, lz.int32))
