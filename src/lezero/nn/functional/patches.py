"""Images as columns of patches, and back."""

from __future__ import annotations

from typing import Any

from lezero.nn.functional.geometry import batched, per_dimension, positive
from lezero.ops.windows import from_windows, window, window_counts
from lezero.tensor import Tensor

IntOrTuple = int | tuple[int, ...]


def _geometry(name: str, kernel: Any, dilation: Any, padding: Any, stride: Any) -> tuple[tuple[int, ...], ...]:
    return (
        positive(name, "kernel_size", kernel, 2),
        positive(name, "dilation", dilation, 2),
        per_dimension(name, "padding", padding, 2),
        positive(name, "stride", stride, 2),
    )


def unfold(
    input: Tensor,
    kernel_size: IntOrTuple,
    dilation: IntOrTuple = 1,
    padding: IntOrTuple = 0,
    stride: IntOrTuple = 1,
) -> Tensor:
    """Patches of an image as columns: (batch, channels, height, width) -> (batch, channels · kernel elements, patches).

    The batch may be absent.  Patches follow each other row by row; what a window has outside the image is 0.

    kernel_size, dilation, padding, stride : a number, or one for height and one for width
    """
    kernel, dilations, pads, strides = _geometry("unfold", kernel_size, dilation, padding, stride)
    x, added = batched("unfold", input, 4)
    batch, channels, *extents = x.shape
    rows, columns = window_counts(extents, kernel, strides, dilations, pads, pads)
    if rows < 1 or columns < 1:
        raise ValueError(
            f"unfold: windows of {kernel}, {dilations} apart, do not fit into {tuple(extents)} padded by {pads}"
        )
    seen = window(
        x, axes=(2, 3), sizes=kernel, strides=strides, dilations=dilations, before=pads, after=pads, fill=0
    )  # (batch, channels, rows, columns, *kernel)
    y = seen.permute(0, 1, 4, 5, 2, 3).reshape(batch, channels * kernel[0] * kernel[1], rows * columns)
    return y.squeeze(0) if added else y


def fold(
    input: Tensor,
    output_size: IntOrTuple,
    kernel_size: IntOrTuple,
    dilation: IntOrTuple = 1,
    padding: IntOrTuple = 0,
    stride: IntOrTuple = 1,
) -> Tensor:
    """Images of columns of patches, added where they overlap: the adjoint of ``unfold``.

    (batch, channels · kernel elements, patches) -> (batch, channels, *output_size); the batch may be absent

    kernel_size, dilation, padding, stride : a number, or one for height and one for width
    """
    kernel, dilations, pads, strides = _geometry("fold", kernel_size, dilation, padding, stride)
    extents = positive("fold", "output_size", output_size, 2)
    x, added = batched("fold", input, 3)
    batch, features, patches = x.shape
    rows, columns = window_counts(extents, kernel, strides, dilations, pads, pads)
    size = kernel[0] * kernel[1]
    if features % size or rows < 1 or columns < 1 or patches != rows * columns:
        raise ValueError(
            f"fold: an input (batch, a multiple of {size}, {max(rows, 0) * max(columns, 0)}) is needed for an output of {extents} "
            f"and a kernel of {kernel}, got shape {tuple(input.shape)}"
        )
    seen = x.reshape(batch, features // size, *kernel, rows, columns).permute(0, 1, 4, 5, 2, 3)
    spread = from_windows(seen, axes=(2, 3), strides=strides, dilations=dilations, before=pads, extents=extents)
    y = spread.sum((-2, -1))
    return y.squeeze(0) if added else y
