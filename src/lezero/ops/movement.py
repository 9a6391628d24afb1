"""Every operation that moves elements under one roof."""

# ruff: noqa: F401, I001 -- a face: names are imported for others to import

from lezero.ops.diagonals import diagonal, diagonal_embed, tril, triu
from lezero.ops.rearrange import (
    border, cat, chunk, meshgrid, repeat, repeat_interleave, split, squeeze, stack, tile,
)  # fmt: skip
from lezero.ops.rules import unsqueeze
from lezero.ops.shaping import expand, flip, later, permute, reshape, resolved_shape, roll
from lezero.ops.slicing import concatenate, embed, pad, part, slice, slice_bounds, slice_update
from lezero.ops.windows import from_windows, to_windows, window, window_counts
