"""Devices and backends: which there are, which is used, what they have and what they have used.

lz.device.set_backend("numpy")     # the oracle, op by op; "cpu" generates code
lz.device.memory_stats()           # bytes in use and at the peak, the arena, the kernel cache
lz.device("cpu")                   # the name of a device, as ``tensor.device`` answers
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from lezero.graph.place import Device
from lezero.hal import registry
from lezero.hal.backend import Properties
from lezero.misspelt import suggest_names
from lezero.runtime.run import run_now


def set_backend(name: str) -> None:
    """Run everything from now on with the backend `name`; what has been recorded before runs first, with the old one.

    The environment variable ``LEZERO_BACKEND`` sets the one a process begins with.
    """
    chosen = registry.load_backend(name)
    if chosen is not registry.current():
        run_now()
    registry.set_backend(name)


def get_backend() -> str:
    """The name of the backend in use."""
    return registry.get_backend()


def list_backends() -> list[str]:
    """Names of the installed backends; other packages add theirs through the entry-point group ``lezero.backends``."""
    return registry.list_backends()


def devices() -> list[str]:
    """Devices of the backend in use, such as ``cpu`` or ``cuda:0``."""
    return registry.current().devices()


def properties(device: str = "cpu") -> Properties:
    """Name, cores, bytes of memory and instruction-set level of a device."""
    known = devices()
    if device not in known:
        raise ValueError(f"backend {get_backend()!r} has no device {device!r}; it has {', '.join(known)}")
    return registry.current().properties(device)


def synchronize() -> None:
    """Run what has been recorded, and return when it has finished."""
    run_now()
    registry.current().synchronize()


def memory_stats() -> dict[str, int]:
    """What the backend counts.  On the CPU:

    ========================== ==========================================================================================
    ``allocated_bytes``        in tensors and in the arena now
    ``peak_bytes``             the most there ever was, or since ``reset_peak_memory_stats()``
    ``kept_bytes``             unused, kept to be used again
    ``arena_bytes``            the arena of temporaries, which all programs share
    ``mappings``               how often memory was asked of the operating system
    ``kernels_loaded``         machine kernels in memory
    ``kernels_compiled``       kernels compiled by this process
    ``kernels_from_disk``      kernels found in the cache on disk
    ========================== ==========================================================================================
    """
    return registry.current().memory_stats()


def reset_peak_memory_stats() -> None:
    """Count ``peak_bytes`` from what is in use now."""
    registry.current().reset_peak_memory_stats()


def memory_allocated() -> int:
    """Bytes in tensors and in the arena now: ``memory_stats()["allocated_bytes"]``."""
    return memory_stats()["allocated_bytes"]


def max_memory_allocated() -> int:
    """The most there ever were, or since ``reset_peak_memory_stats()``: ``memory_stats()["peak_bytes"]``."""
    return memory_stats()["peak_bytes"]


def reset_max_memory_allocated() -> None:
    """The same as ``reset_peak_memory_stats()``."""
    reset_peak_memory_stats()


def empty_cache() -> None:
    """Run what has been recorded, and give memory that nothing uses back to the operating system.

    That is what tensors no longer there have left (``kept_bytes``; pieces of at most 64 KiB stay, to be used again) and the
    arena of intermediate values (``arena_bytes``), which the next run makes anew.  What tensors hold stays: parameters,
    gradients, optimizer state, data, results, and what a result keeps for a ``backward()`` that may still come.  So do compiled
    kernels; those on disk are cleared by ``lezero cache clear``.
    """
    run_now()
    registry.current().empty_cache()


def set_num_threads(threads: int) -> None:
    """Use `threads` threads for computing (also: ``LEZERO_NUM_THREADS``).

    What is run with another number of threads is planned anew, because results are split by it: the same seed, thread count
    and machine give the same bits.
    """
    from lezero.backends.cpu import pool

    if not isinstance(threads, int) or isinstance(threads, bool):
        raise TypeError(f"set_num_threads: an int is needed, got {type(threads).__name__}")
    run_now()
    pool.set_num_threads(threads)


def get_num_threads() -> int:
    """How many threads compute."""
    from lezero.backends.cpu import pool

    return pool.get_num_threads()


def set_float32_matmul_precision(precision: str) -> None:
    """How exact products of float32 matrices are: ``"highest"`` (the default), ``"high"`` or ``"medium"``.

    ``"medium"`` rounds the operands to bfloat16 where the processor multiplies pairs of these (AVX-512-BF16, AMX).  Products are
    exact and sums float32, so an element of A @ B is off by at most 2**-7 times that of ``abs(A) @ abs(B)``.  ``"high"`` takes
    each operand for the sum of two bfloat16 numbers and leaves out the product of the two smaller ones (at most 2**-14 times
    ``abs(A) @ abs(B)``), where the processor has AMX; with AVX-512-BF16 three products would take 1.5 times as long as one of
    float32.  Elsewhere, and for a matrix times a vector, both compute what ``"highest"`` does.  Convolutions and other dtypes are not concerned.  It holds for what runs afterwards, captured functions included.

    Raises
    ------
    ValueError
        If `precision` is none of the three.
    """
    from lezero.hal import precision as chosen

    if precision not in chosen.FLOAT32_MATMUL:
        raise ValueError(f"set_float32_matmul_precision: one of {', '.join(chosen.FLOAT32_MATMUL)}, got {precision!r}")
    run_now()
    chosen.float32_matmul = precision


def get_float32_matmul_precision() -> str:
    """What :func:`set_float32_matmul_precision` was given last."""
    from lezero.hal import precision

    return precision.float32_matmul


__all__ = [
    "Properties", "devices", "empty_cache", "get_backend", "get_float32_matmul_precision", "get_num_threads", "list_backends",
    "max_memory_allocated", "memory_allocated", "memory_stats", "properties", "reset_max_memory_allocated", "reset_peak_memory_stats", "set_backend", "set_float32_matmul_precision", "set_num_threads", "synchronize",
]  # fmt: skip


class _Named(ModuleType):
    """This module, which is also called like the class that ``torch.device`` is."""

    def __call__(self, name: Any, index: int | None = None) -> Device:
        return Device(name, index)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, Device)


sys.modules[__name__].__class__ = _Named


suggest_names(__name__)
