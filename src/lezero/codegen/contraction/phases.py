"""How a stride divides the pixels of an input gradient.

Pixel x of the input receives from output pixel (x + pad - tap * dilation) / stride, where that is whole.  Pixels that
agree modulo the stride meet the same taps, and among them the gradient is a convolution with stride 1.
"""

from __future__ import annotations


def phases(
    extent: int, kernel: int, stride: int, pad: int, dilation: int
) -> list[tuple[int, int, list[tuple[int, int]]]]:
    """Along one axis: (first pixel, how many, [(tap, displacement in the output's gradient)]) of each phase."""
    result = []
    for first in range(min(stride, extent)):
        reach = [(t, first + pad - t * dilation) for t in range(kernel)]
        taps = [(t, move // stride) for t, move in reach if move % stride == 0]
        result.append((first, -(-(extent - first) // stride), taps))
    return result
