"""Sequences of different lengths: padded to one tensor, or packed one step after the other without padding."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lezero.graph.dim import same
from lezero.graph.dtype import int64
from lezero.misspelt import suggest_names
from lezero.nn.parameter import constant_tensor
from lezero.runtime.recording import STATE
from lezero.runtime.whole import WHOLE
from lezero.tensor import Tensor, arange, stack, where

__all__ = [
    "PackedSequence",
    "invert_permutation",
    "pack_padded_sequence",
    "pack_sequence",
    "pad_packed_sequence",
    "pad_sequence",
    "unpack_sequence",
    "unpad_sequence",
]


class _Packed(NamedTuple):
    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None
    unsorted_indices: Tensor | None


class PackedSequence(_Packed):
    """Sequences without padding: the first elements of all, the second elements of all that have one, and so on.

    Attributes
    ----------
    data : (sum of the lengths, *)
    batch_sizes : (longest length,), int64; how many sequences have each step
    sorted_indices : (sequences,), int64; the sequences in order of falling length; None if they were given so
    unsorted_indices : (sequences,), int64; its inverse
    """

    _known: tuple[Any, list[builtins.int], list[builtins.int] | None] | None = None
    """The capture that it was made in, the batch sizes, and the unsorted indices: a capture cannot read tensors."""

    def __new__(
        cls,
        data: Tensor,
        batch_sizes: Tensor,
        sorted_indices: Tensor | None = None,
        unsorted_indices: Tensor | None = None,
    ) -> PackedSequence:
        if unsorted_indices is None:
            unsorted_indices = invert_permutation(sorted_indices)
        return super().__new__(cls, data, batch_sizes, sorted_indices, unsorted_indices)

    def __getstate__(self) -> None:
        return None  # copies are in no capture

    def with_data(self, data: Tensor) -> PackedSequence:
        """Other elements of the same sequences."""
        made = self._replace(data=data)
        made._known = self._known
        return made

    def sizes(self) -> list[builtins.int]:
        """``batch_sizes`` as numbers."""
        known = self._in_capture()
        return self.batch_sizes.tolist() if known is None else known[1]

    def places(self) -> list[builtins.int] | None:
        """``unsorted_indices`` as numbers."""
        known = self._in_capture()
        if known is not None:
            return known[2]
        return None if self.unsorted_indices is None else self.unsorted_indices.tolist()

    def _in_capture(self) -> Any:
        capture = STATE.capture
        return self._known if capture is not None and self._known is not None and self._known[0] is capture else None

    def to(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """With the data moved or converted, as ``Tensor.to``."""
        return self.with_data(self.data.to(*args, **kwargs))

    def cpu(self) -> PackedSequence:
        """On the CPU."""
        return self.to("cpu")

    def float(self) -> PackedSequence:
        """With the data in float32."""
        return self.to("float32")

    def double(self) -> PackedSequence:
        """With the data in float64."""
        return self.to("float64")

    def half(self) -> PackedSequence:
        """With the data in float16."""
        return self.to("float16")

    def bfloat16(self) -> PackedSequence:
        """With the data in bfloat16."""
        return self.to("bfloat16")

    def int(self) -> PackedSequence:
        """With the data in int32."""
        return self.to("int32")

    def long(self) -> PackedSequence:
        """With the data in int64."""
        return self.to("int64")


class WrittenSequence(PackedSequence):
    """Packed sequences of a model that is being written down, whose lengths nobody knows yet: they stay padded.

    Attributes
    ----------
    padded : (longest, batch, *)
    lengths : (batch,) ints
    """

    padded: Tensor
    lengths: Tensor

    def __new__(cls, padded: Tensor, lengths: Tensor) -> WrittenSequence:
        made = tuple.__new__(cls, (padded, lengths, None, None))
        made.padded, made.lengths = padded, lengths
        return made

    def __getattribute__(self, name: str) -> Any:
        if name in ("data", "batch_sizes", "with_data", "to", "sizes"):
            raise ValueError(
                f"PackedSequence.{name}: lengths that are an argument of the model are not known while it is written, so its "
                "sequences stay padded; recurrent layers and pad_packed_sequence take them"
            )
        return super().__getattribute__(name)

    def unpacked(
        self, batch_first: bool, padding_value: float, total_length: builtins.int | None
    ) -> tuple[Tensor, Tensor]:
        """What ``pad_packed_sequence`` gives."""
        x, counts = self.padded, self.lengths
        if total_length is None or not same(total_length, x.shape[0]):
            raise ValueError(
                "pad_packed_sequence: the longest of lengths that are an argument of the model is not known while it is written; "
                f"total_length= says what the input was padded to, {builtins.int(x.shape[0])}, got {total_length}"
            )
        here = (arange(x.shape[0]).unsqueeze(1) < counts).reshape(*x.shape[:2], *(1,) * (x.ndim - 2))
        padded = where(here, x, padding_value)._cast(x.dtype)
        return padded.transpose(0, 1) if batch_first else padded, counts._cast(int64)


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """Where each of 0 … n - 1 stands in a permutation of them; None stays None."""
    return None if permutation is None else permutation.argsort()


def pack_padded_sequence(
    input: Tensor, lengths: Tensor | Sequence[int], batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """Pack a padded batch.

    Parameters
    ----------
    input : (longest, batch, *), or (batch, longest, *) with `batch_first`
    lengths : (batch,) ints from 1 to the longest
    enforce_sorted : whether lengths that do not fall (or stay) are an error; otherwise sequences are sorted first

    Raises
    ------
    ValueError : lengths that do not fit the input, or are not in order
    """
    if input.ndim < 2:
        raise ValueError(
            f"pack_padded_sequence: an input of 2 dimensions or more is needed, got shape {tuple(input.shape)}"
        )
    x = input.transpose(0, 1) if batch_first else input
    if WHOLE.parts and isinstance(lengths, Tensor) and lengths._buffer is None:
        return WrittenSequence(x, lengths)
    steps, batch = int(x.shape[0]), int(x.shape[1])
    counts = np.asarray(lengths.tolist() if isinstance(lengths, Tensor) else lengths)
    if counts.size and counts.dtype.kind not in "iu":
        raise ValueError(f"pack_padded_sequence: lengths are integers, got {counts.tolist()}")
    if counts.shape != (batch,):
        raise ValueError(f"pack_padded_sequence: a length for each of {batch} sequences is needed, got {counts.shape}")
    if batch == 0 or counts.min() < 1 or counts.max() > steps:
        raise ValueError(f"pack_padded_sequence: lengths are from 1 to {steps}, got {counts.tolist()}")
    order = np.argsort(-counts, kind="stable")
    if enforce_sorted:
        if (np.diff(counts) > 0).any():
            raise ValueError(
                f"pack_padded_sequence: lengths have to fall, got {counts.tolist()}; enforce_sorted=False sorts the sequences"
            )
        order = np.arange(batch)
    here = counts[order] > np.arange(counts.max())[:, None]  # (steps, sequences)
    step, row = np.nonzero(here)
    rows = x.reshape(steps * batch, *x.shape[2:]).index_select(0, constant_tensor(step * batch + order[row]))
    back = np.argsort(order)
    places = (None, None) if enforce_sorted else (constant_tensor(order), constant_tensor(back))
    packed = PackedSequence(rows, constant_tensor(here.sum(1)), *places)
    packed._known = STATE.capture, here.sum(1).tolist(), None if enforce_sorted else back.tolist()
    return packed


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> tuple[Tensor, Tensor]:
    """The padded batch of packed sequences, and their lengths: the inverse of ``pack_padded_sequence``.

    Parameters
    ----------
    total_length : pad to this length instead of the longest's

    Returns
    -------
    (longest, batch, *), or (batch, longest, *) with `batch_first`; and (batch,) of int64
    """
    if isinstance(sequence, WrittenSequence):
        return sequence.unpacked(batch_first, padding_value, total_length)
    sizes = np.asarray(sequence.sizes(), np.int64)
    steps, batch = len(sizes), int(sizes[0])
    if total_length is not None and total_length < steps:
        raise ValueError(f"pad_packed_sequence: total_length={total_length} is below the longest length, {steps}")
    here = np.arange(batch) < sizes[:, None]
    starts = np.cumsum(sizes) - sizes
    rows = np.where(here, starts[:, None] + np.arange(batch), 0)
    if total_length is not None:
        more = ((0, total_length - steps), (0, 0))
        here, rows = np.pad(here, more), np.pad(rows, more)
    counts = here.sum(0)
    back = sequence.places()
    if back is not None:
        here, rows, counts = here[:, back], rows[:, back], counts[back]
    if batch_first:
        here, rows = here.T, rows.T
    data = sequence.data
    found = data.index_select(0, constant_tensor(np.ascontiguousarray(rows.reshape(-1))))
    padded = found.reshape(*rows.shape, *data.shape[1:])
    mask = constant_tensor(np.ascontiguousarray(here)).reshape(*here.shape, *(1,) * (data.ndim - 1))
    return where(mask, padded, padding_value)._cast(data.dtype), constant_tensor(counts)


def pad_sequence(
    sequences: Tensor | Sequence[Tensor],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:
    """Sequences (length, *) padded to the longest and stacked: (longest, batch, *), or (batch, longest, *)."""
    from lezero.nn.functional.padding import pad

    if padding_side not in ("left", "right"):
        raise ValueError(f"pad_sequence: padding_side is 'left' or 'right', got {padding_side!r}")
    given = _several("pad_sequence", sequences)
    longest = max(int(s.shape[0]) for s in given)
    padded = []
    for s in given:
        missing = longest - int(s.shape[0])
        widths = (0, missing) if padding_side == "right" else (missing, 0)
        padded.append(pad(s, (*(0, 0) * (s.ndim - 1), *widths), "constant", padding_value) if missing else s)
    return stack(padded, 0 if batch_first else 1)


def unpad_sequence(
    padded_sequences: Tensor, lengths: Tensor | Sequence[int], batch_first: bool = False
) -> list[Tensor]:
    """The sequences (length, *) of a padded batch: the inverse of ``pad_sequence``."""
    x = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    counts = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
    return [x[k, :n] for k, n in enumerate(counts)]


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Pack sequences (length, *); `enforce_sorted` as for ``pack_padded_sequence``."""
    given = _several("pack_sequence", sequences)
    return pack_padded_sequence(pad_sequence(given), [int(s.shape[0]) for s in given], enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The sequences (length, *) of a packed one: the inverse of ``pack_sequence``."""
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)


def _several(name: str, sequences: Tensor | Sequence[Tensor]) -> Sequence[Tensor]:
    given = sequences.unbind(0) if isinstance(sequences, Tensor) else list(sequences)
    if not given:
        raise ValueError(f"{name}: one sequence or more is needed")
    if any(s.ndim < 1 or tuple(s.shape[1:]) != tuple(given[0].shape[1:]) for s in given):
        raise ValueError(
            f"{name}: sequences (length, *) that differ in length only are needed, got {[tuple(s.shape) for s in given]}"
        )
    return given


suggest_names(__name__)
