"""Values one after the other in memory: what the scheduler makes of long concatenations."""

from __future__ import annotations

from math import prod

import numpy as np

from lezero.ops.base import Opaque, op


@op("joined")
class joined(Opaque):
    """The elements of all operands, each in row-major order, one operand after the other, as an array of `shape`.

    Parameters
    ----------
    xs : of one dtype, any shapes
    shape : as many elements as the operands have together
    """

    attrs = {"shape": ()}
    shape_attrs = True

    def infer(*xs, shape):
        if sum(prod(x.shape) for x in xs) != prod(shape) or any(x.dtype is not xs[0].dtype for x in xs):
            raise ValueError(f"joined: {[tuple(x.shape) for x in xs]} do not make an array of shape {tuple(shape)}")
        return shape, xs[0].dtype

    def reference(*xs, shape):
        return np.concatenate([x.reshape(-1) for x in xs]).reshape(shape)
