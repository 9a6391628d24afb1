"""What a loader loads from: map-style and iterable datasets, and the ways to combine and divide them."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from lezero.data.randomness import draw_seed, generator_from
from lezero.tensor import Tensor, tensor


class Dataset:
    """A collection with ``__getitem__(index)`` and ``__len__()``.

    A dataset that can fetch many items at once faster than one by one may also define ``gather(indices)``, which
    returns the collated batch; the loader uses it when the default collation is asked for.
    """

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must define __getitem__(index)")

    def __add__(self, other: Dataset) -> ConcatDataset:
        return ConcatDataset([self, other])


class IterableDataset(Dataset):
    """A stream: ``__iter__()`` instead of indices.

    With worker processes every worker iterates over its own copy; use :func:`lezero.data.get_worker_info` to give each
    its share.
    """

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} must define __iter__()")


class TensorDataset(Dataset):
    """Rows of tensors (or arrays) with the same first extent; item i is the tuple of their i-th rows.

    Batches are taken from all tensors at once, without a Python loop over the items.
    """

    def __init__(self, *tensors: Tensor | np.ndarray) -> None:
        if not tensors:
            raise ValueError("TensorDataset: at least one tensor is needed")
        self.tensors = tuple(t if isinstance(t, Tensor) else tensor(np.asarray(t)) for t in tensors)
        lengths = [int(t.shape[0]) if len(t.shape) else None for t in self.tensors]
        if None in lengths or len(set(lengths)) > 1:
            shapes = ", ".join(str(tuple(int(e) for e in t.shape)) for t in self.tensors)
            raise ValueError(f"TensorDataset: all tensors need the same first extent, got shapes {shapes}")
        self._length: int = lengths[0]  # type: ignore[assignment]

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return tuple(t[index] for t in self.tensors)

    def __len__(self) -> int:
        return self._length

    def gather(self, indices: Sequence[int]) -> tuple[np.ndarray, ...]:
        """The rows at `indices` of every tensor, copied."""
        return tuple(np.take(t.numpy(), indices, axis=0) for t in self.tensors)


class Subset(Dataset):
    """The items of `dataset` at `indices`, in that order."""

    def __init__(self, dataset: Dataset, indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, [int(i) for i in indices]
        inner = getattr(dataset, "gather", None)
        if inner is not None:
            self.gather: Callable[[Sequence[int]], Any] = self._gather

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.indices[index]]

    def __len__(self) -> int:
        return len(self.indices)

    def _gather(self, indices: Sequence[int]) -> Any:
        return self.dataset.gather([self.indices[i] for i in indices])  # type: ignore[attr-defined]


class ConcatDataset(Dataset):
    """One dataset after the other."""

    def __init__(self, datasets: Sequence[Dataset]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ValueError("ConcatDataset: at least one dataset is needed")
        if any(isinstance(d, IterableDataset) for d in self.datasets):
            raise TypeError("ConcatDataset: an IterableDataset has no indices, so it cannot be concatenated")
        self.cumulative_sizes = list(accumulate(len(d) for d in self.datasets))  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Any:
        length = len(self)
        if not -length <= index < length:
            raise IndexError(f"ConcatDataset: index {index} is out of range for {length} items")
        index %= length
        which = bisect.bisect_right(self.cumulative_sizes, index)
        return self.datasets[which][index - (self.cumulative_sizes[which - 1] if which else 0)]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]


def random_split(dataset: Dataset, lengths: Sequence[int | float], generator: Any = None) -> list[Subset]:
    """Divide a dataset at random into parts that do not overlap.

    Parameters
    ----------
    lengths : counts that add up to ``len(dataset)``, or fractions that add up to 1
        Items left over by rounding fractions go to the first parts, one each.
    generator : Generator, optional
        Where the randomness comes from; the default generator (``lz.manual_seed``) otherwise.
    """
    total = len(dataset)  # type: ignore[arg-type]
    if math.isclose(sum(lengths), 1) and all(0 <= part <= 1 for part in lengths):
        counts = [math.floor(total * part) for part in lengths]
        for i in range(total - sum(counts)):
            counts[i % len(counts)] += 1
    else:
        counts = [int(part) for part in lengths]
        if sum(counts) != total or any(c != part for c, part in zip(counts, lengths)):
            raise ValueError(
                f"random_split: lengths {list(lengths)} must add up to the dataset's {total} items, or to 1"
            )
    order = generator_from(draw_seed(generator)).permutation(total).tolist()
    ends = list(accumulate(counts))
    return [Subset(dataset, order[end - count : end]) for count, end in zip(counts, ends)]
