"""Transposed and deformable convolutions, and columns put together to images."""

from __future__ import annotations

from math import prod
from typing import Any

import lezero as lz
from lezero.nn.functional.sampling import linear_taps, sample
from lezero.nn.functional.volumes import transposed
from lezero.onnx.operators.pooling import along
from lezero.onnx.registry import Context, integers, on_device, operator
from lezero.ops import movement
from lezero.ops.windows import from_windows
from lezero.tensor import Tensor


@operator("ConvTranspose")
def conv_transpose(
    _: Context, x: Tensor, w: Tensor, bias: Tensor | None = None, *, auto_pad: str = "NOTSET", dilations: list[int] | None = None,
    group: int = 1, kernel_shape: list[int] | None = None, output_padding: list[int] | None = None,
    output_shape: list[int] | None = None, pads: list[int] | None = None, strides: list[int] | None = None,
) -> Tensor:  # fmt: skip
    n = x.ndim - 2
    strides, dilations, extra = strides or [1] * n, dilations or [1] * n, output_padding or [0] * n
    full = [(h - 1) * s + d * (k - 1) + 1 for h, s, d, k in zip(x.shape[2:], strides, dilations, w.shape[2:])]
    if output_shape is None and auto_pad.startswith("SAME"):
        output_shape = [h * s for h, s in zip(x.shape[2:], strides)]
    if output_shape is not None:
        cut = [f + e - o for f, e, o in zip(full, extra, output_shape[-n:])]
        less, more = [c // 2 for c in cut], [c - c // 2 for c in cut]
        around = list(zip(less, more) if auto_pad == "SAME_UPPER" else zip(more, less))
    else:
        around = list(zip(pads[:n], pads[n:])) if pads and auto_pad == "NOTSET" else [(0, 0)] * n
    kept = tuple((b, a - e) for (b, a), e in zip(around, extra))  # less than nothing at the end adds elements
    inside = all(b >= 0 and a >= 0 for b, a in kept)
    extents = tuple(f - b - a for f, (b, a) in zip(full, kept)) if inside else tuple(full)
    cut_off = kept if inside else ((0, 0),) * n
    y = transposed(x, w, extents, tuple(strides), cut_off, tuple(dilations), group)
    if not inside:
        y = movement.pad(y, before=(0, 0, *(-b for b, _ in kept)), after=(0, 0, *(-a for _, a in kept)))
    return y if bias is None else y + along(bias, 1, y.ndim)


@operator("DeformConv", 19)
def deform_conv(
    _: Context, x: Tensor, w: Tensor, offset: Tensor, bias: Tensor | None = None, mask: Tensor | None = None, *,
    dilations: list[int] | None = None, group: int = 1, kernel_shape: list[int] | None = None, offset_group: int = 1,
    pads: list[int] | None = None, strides: list[int] | None = None,
) -> Tensor:  # fmt: skip
    n, kernel = x.ndim - 2, [int(k) for k in w.shape[2:]]
    strides, dilations, pads = strides or [1] * n, dilations or [1] * n, pads or [0] * 2 * n
    batch, channels, out, taps = x.shape[0], x.shape[1], list(offset.shape[2:]), prod(kernel)
    moved = lz.reshape(offset, (batch * offset_group, taps, n, *out))
    positions = []
    for k in range(n):
        tap = lz.arange(taps) // prod(kernel[k + 1 :]) % kernel[k] * dilations[k] - pads[k]
        start = lz.arange(out[k]) * strides[k]
        at = along(tap, 1, n + 2) + along(start, 2 + k, n + 2) + moved.select(2, k)
        positions.append(lz.reshape(at, (batch * offset_group, -1)))
    images = lz.reshape(x, (batch * offset_group, channels // offset_group, *x.shape[2:]))
    seen = sample(images, [linear_taps(p, d) for p, d in zip(positions, x.shape[2:])])
    seen = lz.reshape(seen, (batch, offset_group, channels // offset_group, taps, *out))
    if mask is not None:
        seen = seen * lz.reshape(mask, (batch, offset_group, 1, taps, *out))
    columns = lz.reshape(seen, (batch, group, channels // group * taps, -1))
    y = lz.matmul(lz.reshape(w, (group, w.shape[0] // group, -1)), columns)
    y = lz.reshape(y, (batch, w.shape[0], *out))
    return y if bias is None else y + along(bias, 1, y.ndim)


@operator("Col2Im", 18, host=True)
def col2im(
    _: Context, x: Any, image_shape: Any, block_shape: Any, *, dilations: list[int] | None = None, pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:  # fmt: skip
    x, image, block = on_device(x), integers(image_shape), integers(block_shape)
    n = len(block)
    strides, dilations, pads = strides or [1] * n, dilations or [1] * n, pads or [0] * 2 * n
    counts = [
        (d + b + a - l * (k - 1) - 1) // s + 1
        for d, b, a, l, k, s in zip(image, pads[:n], pads[n:], dilations, block, strides)
    ]
    blocks = lz.reshape(x, (x.shape[0], x.shape[1] // prod(block), *block, *counts))
    blocks = lz.permute(blocks, (0, 1, *range(2 + n, 2 + 2 * n), *range(2, 2 + n)))
    spread = from_windows(
        blocks, axes=tuple(range(2, 2 + n)), strides=tuple(strides), dilations=tuple(dilations), before=tuple(pads[:n]),
        extents=tuple(image),
    )  # fmt: skip
    return lz.sum(spread, dim=tuple(range(2 + n, 2 + 2 * n)))
