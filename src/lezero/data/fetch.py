"""Making one batch of a dataset, in whichever process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from lezero.data.collate import collate, convert, default_collate, default_convert, wrap_arrays

END = object()
"""What a stream gives after its last batch."""


class Fetcher:
    """Fetches items and collates them.

    Parameters
    ----------
    collate_fn : callable
        The default collations are replaced by their own internals, with `wrap` making the leaves.
    batched : whether ``indices`` are many, or one (``batch_size=None``)
    """

    def __init__(self, dataset: Any, collate_fn: Callable, batched: bool, wrap: Callable) -> None:
        self.dataset, self.batched, self.wrap = dataset, batched, wrap
        self.context = ""  # what was being done, for the note on an exception
        if collate_fn is default_collate:
            self._collate: Callable = lambda items: collate(items, wrap)
        elif collate_fn is default_convert:
            self._collate = lambda item: convert(item, wrap)
        else:
            self._collate = collate_fn
        self._gather = getattr(dataset, "gather", None) if batched and collate_fn is default_collate else None

    def from_indices(self, indices: Sequence[Any] | Any) -> Any:
        """The batch of the items at `indices`."""
        if self._gather is not None:
            self.context = f"while gathering items {_some(indices)}"
            return wrap_arrays(self._gather(indices), self.wrap)
        if not self.batched:
            self.context = f"while loading item {indices!r}"
            return self._collate(self.dataset[indices])
        items = []
        for index in indices:
            self.context = f"while loading item {index!r}"
            items.append(self.dataset[index])
        self.context = f"while collating items {_some(indices)}"
        return self._collate(items)

    def from_stream(self, stream: Iterator[Any], count: int | None, drop_last: bool) -> Any:
        """The batch of the next `count` items, or END."""
        self.context = "while reading from the stream"
        if count is None:
            item = next(stream, END)
            self.context = "while converting an item of the stream"
            return END if item is END else self._collate(item)
        items = list(islice(stream, count))
        if not items or (drop_last and len(items) < count):
            return END
        self.context = "while collating items of the stream"
        return self._collate(items)


def _some(indices: Sequence[Any]) -> str:
    shown = ", ".join(repr(i) for i in indices[:8])
    return f"{shown}, … ({len(indices)} in all)" if len(indices) > 8 else shown
