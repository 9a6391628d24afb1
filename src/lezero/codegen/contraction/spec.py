"""What a contraction is, apart from its sizes."""

from __future__ import annotations

from dataclasses import dataclass

from lezero.codegen.contraction.epilogue import Epilogue, Prologue, plain
from lezero.codegen.launch import MOST_ELEMENTS, MOST_PRODUCTS, divided

COMPUTE = {"f64": "f64", "f32": "f32", "bf16": "f32", "f16": "f32"}
"""Storage type of the inputs -> type products are accumulated in."""


PRODUCTS_PER_THREAD = 1 << 17
"""Multiply-adds that take about as long as two threads need to meet (2 microseconds)."""

ELEMENTS_PER_THREAD = 1 << 13
"""The same for elements copied or packed."""


def useful_threads(threads: int, operations: int, least: int) -> int:
    """How many threads to divide `operations` among, when fewer than `least` are not worth a barrier."""
    return max(1, min(threads, operations // least))


def tasks_for_products(items: int, products: int, threads: int, each: int = 4) -> int:
    """Tasks that share `items` of a contraction, `each` for every useful thread (`threads`), none of them long."""
    return divided(items, each * threads if threads > 1 else 1, products, MOST_PRODUCTS)


def tasks_for_elements(items: int, elements: int, threads: int) -> int:
    """The same for copying, packing and adding up `elements`."""
    return divided(items, 4 * threads if threads > 1 else 1, elements, MOST_ELEMENTS)


def parts_of_panels(panels: int, others: int, threads: int) -> int:
    """Into how many parts to divide the panels, if there are `others` tasks for each: two tasks for a thread, or more if
    those do not come out even."""
    if threads == 1:
        return 1
    few = -(-2 * threads // others)
    parts = min(panels, few)
    return parts if others * parts % threads == 0 else min(panels, 2 * few)


@dataclass(frozen=True)
class MatmulSpec:
    """C[i] = A[i] @ B[i], then the epilogue.

    dtype : storage type of A and B: f32, f64, bf16 or f16 (the latter two accumulate in f32).
    trans_a, trans_b : the stored matrix is the transposed one (A is k x m, B is n x k in memory).
    epilogue : None stores the product as `out_dtype` in the operand "out".
    bf16_products : how many products of bf16 may stand for one of f32, where such products are faster: none; one, of operands
        that are rounded; or three, of operands that are sums of two numbers, without that of the two smaller ones.
    prologue : what A is computed from while it is packed, instead of being in memory (f32 and f64, a batch of 1).
    wide : whether A, and B, lie in memory as f32 and are rounded to `dtype` (bf16 or f16) while they are packed.
    """

    dtype: str = "f32"
    out_dtype: str = "f32"
    trans_a: bool = False
    trans_b: bool = False
    epilogue: Epilogue | None = None
    bf16_products: int = 0
    prologue: Prologue | None = None
    wide: tuple[bool, bool] = (False, False)

    @property
    def sources(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """How A and B are loaded: once, or once for each of the products that stand for one."""
        if self.bf16_products == 3:
            return ("f32", "f32", "f32 rest"), ("f32", "f32 rest", "f32")
        a, b = (f"f32 to {self.dtype}" if wide else self.dtype for wide in self.wide)
        return (a,), (b,)

    @property
    def tail(self) -> Epilogue:
        return self.epilogue or plain(self.out_dtype, COMPUTE[self.dtype])

    @property
    def head_names(self) -> tuple[str, ...]:
        """What the prologue loads."""
        return self.prologue.names if self.prologue else ()


@dataclass(frozen=True)
class ConvSpec:
    """A 2-D convolution.

    Activations are dense (N, H, W, C), or (N, C, H, W) if `planar`; weights are dense (O, I / groups, KH, KW), as the
    user holds them.

    channels : (C, O).
    kernel, stride, dilation : (vertical, horizontal).
    padding : (top, left, bottom, right).
    dtype, out_dtype, epilogue : as in MatmulSpec (a weight gradient's `out_dtype` may be "bf16 to f32", rounded and stored as f32); an epilogue's row is the pixel's number n * OH * OW + y * OW + x, its
        column the channel.  If `planar`, its row is the plane's number n * O + o, its column the pixel y * OW + x in
        the plane, its batch n and its channel o.
    planar : for few channels; groups must be 1.
    planes : the image alone is (N, C, H, W); where it is copied anyway (``copies_image``), forward and weight gradient.
    statistics : the forward pass also gives, for each channel, the "sum" of its result and the sum of "squares" of its
        distances from the mean; without epilogue, in the compute type, neither planar nor depthwise.
    minimal : 3x3 convolutions may be computed by minimal filtering (``winograd.py``) where that is quicker.
    """

    channels: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    dtype: str = "f32"
    out_dtype: str = "f32"
    epilogue: Epilogue | None = None
    planar: bool = False
    planes: bool = False
    statistics: bool = False
    minimal: bool = False

    def __post_init__(self) -> None:
        if self.planar and self.groups != 1:
            raise ValueError(f"conv2d: planar kernels have one group, not {self.groups}; use planar=False")
        if self.channels[0] % self.groups or self.channels[1] % self.groups:
            raise ValueError(f"conv2d: groups={self.groups} divides neither in- nor out-channels {self.channels}")

    @property
    def tail(self) -> Epilogue:
        return self.epilogue or plain(self.out_dtype, COMPUTE[self.dtype])

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    @property
    def per_group(self) -> tuple[int, int]:
        return self.channels[0] // self.groups, self.channels[1] // self.groups

    @property
    def depthwise(self) -> bool:
        return self.channels[0] == self.channels[1] == self.groups > 1

    def out_size(self, h: int, w: int) -> tuple[int, int]:
        """Rows and columns of the result for an input of `h` x `w`."""
        top, left, bottom, right = self.padding
        return (
            (h + top + bottom - self.dilation[0] * (self.kernel[0] - 1) - 1) // self.stride[0] + 1,
            (w + left + right - self.dilation[1] * (self.kernel[1] - 1) - 1) // self.stride[1] + 1,
        )
