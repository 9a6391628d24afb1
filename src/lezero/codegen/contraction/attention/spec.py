"""What attention's kernels are of: precisions and masks, extents, numbers, and the names of their operands and scratch."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from lezero.codegen.contraction.epilogue import Prologue
from lezero.codegen.contraction.text import words
from lezero.loops.ir import Value

BLOCK = 128
"""Queries and keys in a block at most: what the backward pass has of a block at 64 features, some 350 KB, stays in L2."""


@dataclass(frozen=True)
class AttentionSpec:
    """softmax(q @ k.T * scale + mask) @ v, or its gradients.

    dtype : storage type of operands and results: f32, f64, bf16 or f16.  Scores, sums and logarithms are of the compute type.
    mask : storage type of the mask, "bool", `dtype` or the compute type; None without.
    is_causal : query i sees keys 0 to i.
    random : with dropout, the 32 random bits (u32) of a weight, of the variables "seed", "offset" and, added up, "row", the
        number of a row's first weight, and "col".
    """

    dtype: str = "f32"
    mask: str | None = None
    is_causal: bool = False
    random: Value | None = None

    def key(self) -> str:
        drawn = "" if self.random is None else Prologue(self.random, (), 0).key()
        return f"{self.dtype} {self.mask} {self.is_causal:d} {drawn}"

    def inputs(self, which: str) -> list[str]:
        """The names of operands that have strides."""
        return [x for x in INPUTS[which] if x != "mask" or self.mask]

    @property
    def state(self) -> tuple[str, ...]:
        """The names of operands of one number, int64: the state of the random ones."""
        return () if self.random is None else ("seed", "offset")


@dataclass(frozen=True)
class Extents:
    batch: int
    heads: int
    queries: int
    keys: int
    features: int
    values: int

    @property
    def products(self) -> int:
        """Multiply-adds of the forward pass."""
        return self.batch * self.heads * self.queries * self.keys * (self.features + self.values)


Strides = Mapping[str, Sequence[int]]
"""For "q", "k", "v", "dy" and "mask": elements between batches, heads and rows; elements of a row are adjacent."""

SIZES = words("batch heads queries keys features values scale rows columns least gain")
INPUTS = {"forward": words("q k v mask"), "backward": words("q k v mask dy")}
DENSE = {"forward": words("y logarithm"), "backward": words("y logarithm dq dk dv")}
"""Operands without strides of their own."""
REGIONS = {
    "forward": words("a_table s_table q panel s sums top total"),
    "backward": words(
        "q_table dy_table d_table q dy k panels_k panels_v s t dots dq dk dv q_pairs dy_pairs p d d_pairs"
    ),
}
"""The last five are of their own where products are of pairs."""
PAIRS = {"q_pairs": "q", "dy_pairs": "dy", "p": "s", "d": "t", "d_pairs": "t"}
"""What they are elsewhere."""
DRAWN = 24
"""Of a weight's random bits as many as a float32 has are compared with the share that is dropped."""


@dataclass(frozen=True)
class Numbers:
    """scale : of the scores.  p : the share of the weights that is dropped, for a spec that draws."""

    scale: float
    p: float = 0.0

    def params(self) -> tuple[int, int, int]:
        """Bits of the scale; the least random number (24 bits) of a weight that is kept; bits of what those are multiplied by."""
        share = struct.unpack("f", struct.pack("f", self.p))[0]
        return _bits(self.scale), ceil(share * (1 << DRAWN)), _bits(0.0 if self.p == 1 else 1 / (1 - self.p))


def _bits(x: float) -> int:
    return struct.unpack("q", struct.pack("d", x))[0]
