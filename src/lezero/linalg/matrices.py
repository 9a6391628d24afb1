"""What the functions here share: what counts as a matrix, and tensors made from NumPy's results."""

from __future__ import annotations

from math import prod

import numpy as np

from lezero.graph import dtype as dt
from lezero.tensor import Tensor, eye, tensor

_DTYPES = (dt.float32, dt.float64, dt.complex64, dt.complex128)


def check_matrix(name: str, A: Tensor, square: bool = False) -> None:
    """Raise for what is no matrix, or none that LAPACK takes."""
    if A.dtype not in _DTYPES:
        raise TypeError(f"linalg.{name}: float32, float64, complex64 or complex128 is needed, got {A.dtype.name}")
    shape = tuple(map(int, A.shape))
    if len(shape) < 2:
        raise ValueError(f"linalg.{name}: matrices have two dimensions or more, got shape {shape}")
    if square and shape[-1] != shape[-2]:
        raise ValueError(f"linalg.{name}: square matrices are needed, got shape {shape}")


def tensor_of(array: np.ndarray, like: Tensor) -> Tensor:
    """What NumPy gave, in the dtype of `like`."""
    return tensor(array.astype(like.dtype.numpy, copy=False))


def identity(n: int, like: Tensor) -> Tensor:
    """The identity, n by n, in the dtype of `like`."""
    return eye(int(n), dtype=like.dtype)


def in_a_row(a: np.ndarray) -> np.ndarray:
    """Matrices (..., m, n) as (batch, m, n), where there may be none of any."""
    return a.reshape(prod(a.shape[:-2]), *a.shape[-2:])
