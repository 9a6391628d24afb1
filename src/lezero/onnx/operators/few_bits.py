"""Operators of ``com.microsoft`` whose weights have few bits, in blocks with a scale each: products, tables, mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import lezero as lz
from lezero.nn import functional as F
from lezero.onnx.operators import narrow
from lezero.onnx.operators.indexing import counted
from lezero.onnx.operators.microsoft import DOMAIN
from lezero.onnx.operators.quantising import spread
from lezero.onnx.program import OnnxError
from lezero.onnx.registry import Context, dimension, on_device, operator
from lezero.tensor import Tensor, tensor


def unpacked(x: Tensor, bits: int) -> Tensor:
    """Numbers that share bytes, the first in the lowest bits, along the last axis."""
    if bits == 8:
        return x
    parts = [lz.bitwise_and(lz.bitwise_right_shift(x, shift), (1 << bits) - 1) for shift in range(0, 8, bits)]
    return lz.reshape(lz.stack(parts, -1), (*x.shape[:-1], -1))


def need_bits(*widths: int) -> None:
    if not all(bits in (2, 4, 8) for bits in widths):
        raise OnnxError("other widths than 2, 4 and 8 bits are not supported")


# -- products ---------------------------------------------------------------------------------------------------------


@operator("MatMulNBits", domain=DOMAIN, fixed=(2, 3, 4))
def matmul_n_bits(
    _: Context, a: Tensor, b: Tensor, scales: Tensor, zeros: Tensor | None = None, groups: Tensor | None = None,
    bias: Tensor | None = None, *, K: int, N: int, block_size: int, bits: int = 4, accuracy_level: int = 0,
    weight_prepacked: int = 0,
) -> Tensor:  # fmt: skip
    """Rows of B are columns of the product, in blocks of which each has a scale and a zero point.

    groups : for each of the K elements of a row the block whose scale and zero point it has
    """
    need_bits(bits)
    if weight_prepacked:
        raise OnnxError("prepacked weights are not supported")
    blocks = -(-K // block_size)
    scales = lz.reshape(scales, (N, blocks))
    if zeros is None:
        zeros = lz.full((N, blocks), float(1 << bits - 1), dtype=scales.dtype)
    elif zeros.dtype.is_floating_point:
        zeros = lz.reshape(zeros, (N, blocks))
    else:
        zeros = unpacked(lz.reshape(zeros, (N, -1)), bits).narrow(1, 0, blocks).to(scales.dtype)
    w = lz.reshape(unpacked(b, bits).to(scales.dtype), (N, -1)).narrow(1, 0, K)
    if groups is None:
        scales, zeros = (spread(part, w, 1, block_size) for part in (scales, zeros))
    else:
        at = counted(groups.narrow(0, 0, K), blocks)
        scales, zeros = lz.index_select(scales, 1, at), lz.index_select(zeros, 1, at)
    y = lz.matmul(a, ((w - zeros) * scales).to(a.dtype).t())
    return y if bias is None else y + bias


FP4 = (0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4)
"""Of the codes 0 to 7; the others are their negatives (bitsandbytes' floating-point numbers of 4 bits)."""
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""Quantiles of the normal distribution (Dettmers et al. 2023, QLoRA, appendix E)."""


@operator("MatMulBnb4", domain=DOMAIN, fixed=(2,))
def matmul_bnb4(
    _: Context, a: Tensor, b: Tensor, largest: Tensor, *, K: int, N: int, block_size: int, quant_type: int, transB: int = 1,
    training_mode: int = 0,
) -> Tensor:  # fmt: skip
    """Weights [N, K] as positions in a table, two to a byte, the first in its upper bits; blocks go on from row to row."""
    codes = lz.reshape(lz.stack([lz.bitwise_right_shift(b, 4), lz.bitwise_and(b, 15)], -1), (-1,)).narrow(0, 0, N * K)
    numbers = NF4 if quant_type else (*FP4, *(-v for v in FP4))
    w = lz.index_select(tensor(np.array(numbers, np.float32)), 0, codes.to(lz.int64))
    w = lz.reshape(w * spread(largest, w, 0, block_size), (N, K)).to(a.dtype)
    return lz.matmul(a, w.t() if transB else w)


# -- tables -----------------------------------------------------------------------------------------------------------


@operator("GatherBlockQuantized", domain=DOMAIN, host=True, fixed=(0, 2, 3))
def gather_block_quantized(
    _: Context, data: Any, indices: Any, scales: Any, zeros: Any = None, *, bits: int = 4, block_size: int = 128,
    gather_axis: int = 0, quantize_axis: int = 1,
) -> Tensor:  # fmt: skip
    """Elements of a table that is quantised in blocks along an axis."""
    indices, scales = on_device(indices), on_device(scales)
    packed = data.dtype in (lz.uint8, np.uint8)  # other types have as many bits as they say
    data, zeros = (part if part is None else _wide(part, bits if packed else 8) for part in (data, zeros))
    axis, along = dimension(gather_axis, data.ndim), dimension(quantize_axis, data.ndim)
    rows = counted(lz.reshape(indices, (-1,)), data.shape[axis])
    zero: Any = float(1 << bits - 1) if zeros is None and packed else 0.0
    if axis == along:  # a block's scale goes with each of its elements
        scales = spread(scales, data, along, block_size)
        zeros = spread(zeros, data, along, block_size)
    taken = lz.index_select(data, axis, rows)
    scale = _rows(scales, axis, rows)
    if zeros is not None:
        zero = _rows(zeros, axis, rows).to(scale.dtype)
    if axis != along and block_size:
        scale = spread(scale, taken, along, block_size)
        zero = zero if zeros is None else spread(zero, taken, along, block_size)
    y = (taken.to(scale.dtype) - zero) * scale
    return lz.reshape(y, (*y.shape[:axis], *indices.shape, *y.shape[axis + 1 :]))


def _rows(x: Tensor, axis: int, rows: Tensor) -> Tensor:
    """Those of the rows that there are for each; one that is for all of them stays."""
    return x if x.shape[axis] == 1 else lz.index_select(x, axis, rows)


def _wide(x: Any, bits: int) -> Tensor:
    """Integers in bytes of their own; other narrow types as float32."""
    if isinstance(x, np.ndarray) and narrow.is_narrow(x.dtype):
        whole = x.dtype in narrow.BITS
        x = x.astype((np.uint8 if x.dtype.name.startswith("u") else np.int8) if whole else np.float32)
    return unpacked(on_device(x), bits)


# -- mixtures of experts ----------------------------------------------------------------------------------------------

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu, "gelu": partial(F.gelu, approximate="tanh"), "silu": F.silu, "identity": lambda x: x,
}  # fmt: skip


def _gated(fused: Tensor, up: Tensor | None, *, alpha: float, beta: float, limit: float, layout: int) -> Tensor:
    """SwiGLU of two halves that lie in turn (layout 1) or one after the other (2), or of two tensors (0)."""
    if up is None:
        half = fused.shape[-1] // 2
        if layout == 1:
            pairs = lz.reshape(fused, (*fused.shape[:-1], half, 2))
            gate, up = pairs.select(-1, 0), pairs.select(-1, 1)
        else:
            gate, up = fused.narrow(-1, 0, half), fused.narrow(-1, half, half)
    else:
        gate = fused
    if limit != float("inf"):
        gate, up = lz.clamp(gate, max=limit), lz.clamp(up, -limit, limit)
    return gate * lz.sigmoid(alpha * gate) * (up + beta)


def _mixed(
    x: Tensor, router: Tensor, weights: Tensor | None, w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor | None,
    w3: Tensor | None, b3: Tensor | None, *, k: int = 1, activation_type: str = "relu", normalize_routing_weights: int = 0,
    activation_alpha: float = 1.0, activation_beta: float = 0.0, swiglu_fusion: int = 0, swiglu_limit: float = float("inf"),
    use_sparse_mixer: int = 0, swiglu_limit_after_activation: int = 0,
) -> Tensor:  # fmt: skip
    """Each word's `k` best experts, their results weighted.  Every expert computes all words.

    x : [..., hidden];  router : [words, experts];  w1, w3 : [experts, inner, hidden];  w2 : [experts, hidden, inner]
    """
    gated = activation_type == "swiglu"
    if use_sparse_mixer or swiglu_limit_after_activation or not (gated or activation_type in _ACTIVATIONS):
        raise OnnxError("sparse mixers, limits after the activation, and other activations are not supported")
    words = lz.reshape(x, (1, -1, x.shape[-1]))
    shares = _shares(router, weights, k, bool(normalize_routing_weights)).to(x.dtype)

    def through(y: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        y = lz.matmul(y, w.mT)
        return y if b is None else y + b.unsqueeze(1)

    inner, up = through(words, w1, b1), None if w3 is None else through(words, w3, b3)
    if gated:
        inner = _gated(
            inner, up, alpha=activation_alpha, beta=activation_beta, limit=swiglu_limit, layout=swiglu_fusion
        )
    else:
        inner = _ACTIVATIONS[activation_type](inner)
        inner = inner if up is None else inner * up
    y = lz.sum(through(inner, w2, b2) * lz.t(shares).unsqueeze(2), dim=0)
    return lz.reshape(y, tuple(x.shape))


def _shares(router: Tensor, weights: Tensor | None, k: int, normalised: bool) -> Tensor:
    """What each expert counts for each word, 0 for those that are not among its best: [words, experts]."""
    scores = router.float()
    best = lz.topk(scores, k, dim=1)[1]
    if weights is None:
        found = F.softmax(scores, 1)
        found = lz.gather(found, 1, best)
    else:
        found = lz.gather(weights.float(), 1, best)
    if normalised:
        found = found / lz.sum(found, dim=1, keepdim=True)
    return lz.scatter(lz.zeros_like(scores), 1, best, found)


@operator("MoE", domain=DOMAIN)
def moe(
    _: Context, x: Tensor, router: Tensor, w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor | None = None,
    w3: Tensor | None = None, b3: Tensor | None = None, **attributes: Any,
) -> Tensor:  # fmt: skip
    return _mixed(x, router, None, w1, b1, w2, b2, w3, b3, **attributes)


@operator("QMoE", domain=DOMAIN, fixed=(3, 6, 9, 11, 12, 13))
def qmoe(
    _: Context, x: Tensor, router: Tensor, q1: Tensor, s1: Tensor, b1: Tensor | None, q2: Tensor, s2: Tensor, b2: Tensor | None = None,
    q3: Tensor | None = None, s3: Tensor | None = None, b3: Tensor | None = None, z1: Tensor | None = None, z2: Tensor | None = None,
    z3: Tensor | None = None, weights: Tensor | None = None, *more: Any, expert_weight_bits: int = 4, block_size: int = 0,
    quant_type: str = "int", fc1_expert_weight_bits: int | None = None, fc2_expert_weight_bits: int | None = None,
    fc3_expert_weight_bits: int | None = None, weights_prepacked: int = -1, accuracy_level: int = 0, **attributes: Any,
) -> Tensor:  # fmt: skip
    """With weights of few bits: a scale for each row of each expert, or for each block of it."""
    if quant_type != "int" or any(m is not None for m in more):
        raise OnnxError(f"weights of the type {quant_type!r} and quantised activations are not supported")
    bits = [b or expert_weight_bits for b in (fc1_expert_weight_bits, fc2_expert_weight_bits, fc3_expert_weight_bits)]
    need_bits(*bits)

    def of(q: Tensor | None, scale: Tensor | None, zero: Tensor | None, width: int) -> Tensor | None:
        if q is None or scale is None:
            return None
        w = unpacked(q, width).to(scale.dtype)
        count = scale.shape[-1]
        shift: Any = float(1 << width - 1)
        if zero is not None:
            shift = unpacked(zero, width).narrow(-1, 0, count).to(scale.dtype)
        if scale.ndim == 2:
            scale, shift = scale.unsqueeze(2), shift if zero is None else shift.unsqueeze(2)
        else:
            size = block_size or int(w.shape[2]) // int(count)
            scale = spread(scale, w, 2, size)
            shift = shift if zero is None else spread(shift, w, 2, size)
        return ((w - shift) * scale).to(x.dtype)

    w1, w2, w3 = (of(*part) for part in zip((q1, q2, q3), (s1, s2, s3), (z1, z2, z3), bits))
    assert w1 is not None and w2 is not None
    return _mixed(x, router, weights, w1, b1, w2, b2, w3, b3, **attributes)
