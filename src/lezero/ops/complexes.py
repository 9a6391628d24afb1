"""Complex numbers.  Gradients follow PyTorch's convention: for a real loss, dL/d(re) + i dL/d(im)."""

from __future__ import annotations

import numpy as np

from lezero.graph.dtype import promote
from lezero.loops.ir import call, const
from lezero.ops.base import Elementwise, broadcast_shapes, op
from lezero.ops.creation import zeros_like
from lezero.ops.rules import conj as conjugate


@op("real")
class real(Elementwise):
    """The real part (x itself, if x is not complex)."""

    def infer(x):
        return x.shape, x.dtype.to_real()

    def element(x):
        return call("real", x) if x.type[0] == "c" else x

    def reference(x):
        return x.real if np.iscomplexobj(x) else x

    def gradient(dy, y, x):
        return complex(dy, zeros_like(dy)) if x.dtype.is_complex else dy


@op("imag")
class imag(Elementwise):
    """The imaginary part (zero, if x is not complex)."""

    def infer(x):
        return x.shape, x.dtype.to_real()

    def element(x):
        return call("imag", x) if x.type[0] == "c" else const(0, x.type)

    def reference(x):
        return x.imag if np.iscomplexobj(x) else np.zeros_like(x)

    def gradient(dy, y, x):
        return complex(zeros_like(dy), dy) if x.dtype.is_complex else None


@op("conj")
class conj(Elementwise):
    """The complex conjugate (x itself, if x is not complex)."""

    def element(x):
        return call("conj", x) if x.type[0] == "c" else x

    def reference(x):
        return np.conj(x) if np.iscomplexobj(x) else x

    def gradient(dy, y, x):
        return conjugate(dy)


@op("complex")
class complex(Elementwise):
    """re + i*im, from two real operands of float32 or float64."""

    def infer(re, im):
        dtype = promote(re.dtype, im.dtype)
        if dtype.to_complex() is dtype:
            raise TypeError(f"complex: float32 or float64 operands are needed, got {re.dtype.name} and {im.dtype.name}")
        return broadcast_shapes("complex", re.shape, im.shape), dtype.to_complex()

    def element(re, im):
        return call("complex", re, im)

    def reference(re, im):
        return re + 1j * im

    def gradient(dy, y, re, im):
        return real(dy), imag(dy)
