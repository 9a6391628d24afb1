"""Memory for tensors and for the temporaries of a run.

Blocks come in size classes (eight to an octave, so at most an eighth is lost; 32 to an octave from 4 MiB on) and go back to
a list of their class when dropped: a training loop asks for the same sizes again and again and touches no new pages.  Large
blocks are mapped one by one, on huge-page borders where that helps; small ones are cut from slabs.

Mappings are private, so that a forked child gets its own copy, as it expects.

Knob: ``LEZERO_POISON_ARENA=1`` fills an arena with 0xFF bytes (NaN in every float type) before each run, so that
reading what nobody wrote shows.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any
from weakref import ref

import numpy as np

ALIGNMENT = 64
_SLAB = 1 << 20
_SLAB_LARGEST = 1 << 16  # larger blocks have a mapping of their own
_FINE = 4 << 20  # larger blocks have finer classes, and may be taken from one up to an eighth larger
_HUGE_PAGE = 2 << 20
_KEEP = 256 << 20  # unused bytes kept in any case; beyond it, as much as was ever in use


class Block:
    """Memory at `address`; goes back to the allocator when the last reference goes.

    ``numpy.asarray(block)`` is a view of its bytes, and views hold the block.
    """

    __slots__ = ("__weakref__", "address", "nbytes")

    def __init__(self, address: int, nbytes: int) -> None:
        self.address = address
        self.nbytes = nbytes

    @property
    def __array_interface__(self) -> dict[str, object]:
        return {"version": 3, "typestr": "|u1", "shape": (self.nbytes,), "data": (self.address, False)}

    def fill(self, byte: int) -> None:
        ctypes.memset(self.address, byte, self.nbytes)


class _Lent(ref):
    """What a block was made of.  When the block goes, the interpreter itself appends this to the queue of what came back: no
    Python runs, so an interrupt is neither lost in a finaliser nor can it lose the memory."""

    __slots__ = ("address", "capacity", "mapping")
    address: int
    capacity: int
    mapping: object


@dataclass
class MemoryStats:
    """Bytes in blocks now, the most there ever were, unused but kept, and how often new memory was mapped."""

    current: int
    peak: int
    kept: int
    mapped: int


class Allocator:
    """Size classes over private mappings.

    Blocks are dropped by the garbage collector, at any moment and on any thread, even one that is inside `alloc`; so
    dropping only appends to a queue, which the next call works off under the lock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lent: dict[int, _Lent] = {}  # by address
        self._returned: deque[ref[Block]] = deque()
        self._free: dict[int, list[tuple[int, object]]] = {}
        # Of each size the last slab: from where to where it is uncut.
        self._slabs: dict[int, tuple[int, int, object]] = {}
        self._current = self._peak = self._kept = self._mapped = 0

    def alloc(self, nbytes: int) -> tuple[int, Block]:
        """Memory of at least `nbytes` bytes, 64-byte aligned, contents undefined: its address, and its owner.

        Raises
        ------
        MemoryError
            Says how many bytes were wanted.
        """
        capacity = size_class(nbytes)
        with self._lock:
            self._collect()
            capacity, free = self._unused(capacity)
            if free:
                address, mapping = free.pop()
                self._kept -= capacity
            else:
                address, mapping = self._new(capacity, nbytes)
            self._current += capacity
            self._peak = max(self._peak, self._current)
            block = Block(address, nbytes)
            lent = _Lent(block, self._returned.append)
            lent.address, lent.capacity, lent.mapping = address, capacity, mapping
            self._lent[address] = lent
        return address, block

    def stats(self) -> MemoryStats:
        with self._lock:
            self._collect()
            return MemoryStats(self._current, self._peak, self._kept, self._mapped)

    def reset_peak(self) -> None:
        """Count the peak from what is in use now."""
        with self._lock:
            self._collect()
            self._peak = self._current

    def trim(self, keep: int = 0) -> None:
        """Give unused large blocks back to the operating system until at most `keep` unused bytes are left."""
        with self._lock:
            self._collect()
            self._trim(keep)

    def _unused(self, capacity: int) -> tuple[int, list[tuple[int, object]] | None]:
        """The blocks to take one of for `capacity` bytes, and how many they have."""
        found = self._free.get(capacity)
        if found or capacity < _FINE:
            return capacity, found
        larger = [c for c, blocks in self._free.items() if blocks and capacity < c <= capacity * 9 // 8]
        return (min(larger), self._free[min(larger)]) if larger else (capacity, None)

    def _collect(self) -> None:
        while self._returned:
            lent: Any = self._returned.popleft()
            del self._lent[lent.address]
            self._free.setdefault(lent.capacity, []).append((lent.address, lent.mapping))
            self._current -= lent.capacity
            self._kept += lent.capacity
        if self._kept > max(_KEEP, self._peak):
            self._trim(max(_KEEP, self._peak) // 2)

    def _trim(self, keep: int) -> None:
        for capacity in sorted(self._free, reverse=True):
            free = self._free[capacity]
            while free and self._kept > keep and capacity > _SLAB_LARGEST:
                free.pop()  # the mapping goes with its last reference
                self._kept -= capacity

    def _new(self, capacity: int, nbytes: int) -> tuple[int, object]:
        if capacity > _SLAB_LARGEST:
            address, mapping = self._map(capacity, nbytes)
            return address, mapping
        address, end, mapping = self._slabs.get(capacity, (0, 0, None))
        if address == end:
            address, mapping = self._map(_SLAB, nbytes)
            end = address + _SLAB // capacity * capacity
            self._kept += end - address
        self._slabs[capacity] = address + capacity, end, mapping
        self._kept -= capacity
        return address, mapping

    def _map(self, capacity: int, wanted: int) -> tuple[int, object]:
        try:
            address, mapping = _map(capacity)
        except (OSError, OverflowError, ValueError):
            # Unused blocks of other sizes may be what is in the way.
            self._trim(0)
            try:
                address, mapping = _map(capacity)
            except (OSError, OverflowError, ValueError):
                raise MemoryError(
                    f"could not allocate {wanted} bytes ({wanted / (1 << 30):.2f} GiB); "
                    f"{self._current} bytes are in use by tensors. Use a smaller batch or smaller shapes, or let go of "
                    "tensors that are no longer needed"
                ) from None
        self._mapped += 1
        return address, mapping

    def _forget_lock_after_fork(self) -> None:
        self._lock = threading.Lock()


def size_class(nbytes: int) -> int:
    """The capacity of a block for `nbytes`: one of 8 steps between two powers of two (32 from 4 MiB on), a multiple of 64."""
    if nbytes < 0:
        raise ValueError(f"cannot allocate {nbytes} bytes")
    if nbytes <= 8 * ALIGNMENT:
        return max(-(-nbytes // ALIGNMENT), 1) * ALIGNMENT
    step = 1 << ((nbytes - 1).bit_length() - (6 if nbytes > _FINE else 4))
    return -(-nbytes // step) * step


def _map(capacity: int) -> tuple[int, mmap.mmap]:
    huge = capacity >= 2 * _HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE")
    # Address space is free and untouched pages are too, so alignment costs nothing.
    nbytes = capacity + (_HUGE_PAGE if huge else 0)
    if sys.platform == "win32":
        mapping = mmap.mmap(-1, nbytes)
    else:
        mapping = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    if huge:
        # Only what a block fills: a huge page that it ends in would be resident as a whole.
        skipped = -address % _HUGE_PAGE
        mapping.madvise(mmap.MADV_HUGEPAGE, skipped, capacity // _HUGE_PAGE * _HUGE_PAGE)
        address += skipped
    return address, mapping


class Arena:
    """The temporaries of a run: one block that grows to the largest table, and is shared by all of them.

    Nothing in it outlives a run, so growing replaces the block.
    """

    def __init__(self, allocator: Allocator | None = None) -> None:
        self._allocator = allocator or default_allocator
        self._block: Block | None = None
        self.poison = os.environ.get("LEZERO_POISON_ARENA", "0") not in ("", "0")

    @property
    def nbytes(self) -> int:
        return self._block.nbytes if self._block else 0

    def reserve(self, nbytes: int) -> int:
        """Address of at least `nbytes` bytes for the coming run; poisoned if that is asked for."""
        if self._block is None or self._block.nbytes < nbytes:
            self._block = None  # first, so that its memory can serve the new one
            self._block = self._allocator.alloc(nbytes)[1]
        if self.poison:
            self._block.fill(0xFF)
        return self._block.address

    def release(self) -> None:
        """Give the memory back; the next `reserve` takes new."""
        self._block = None


default_allocator = Allocator()


def alloc(nbytes: int) -> tuple[int, Block]:
    """`Allocator.alloc` of the process's allocator."""
    return default_allocator.alloc(nbytes)


def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An uninitialised array in the process's allocator; it owns its block."""
    count = 1
    for extent in shape:
        count *= extent
    _, block = default_allocator.alloc(count * dtype.itemsize)
    return np.asarray(block).view(dtype).reshape(shape)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=default_allocator._forget_lock_after_fork)
