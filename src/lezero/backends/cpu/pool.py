"""The threads that run tables.

Workers are daemon threads of Python that spend their life in the walker's ``work`` function, without the interpreter
lock.  A run's caller is thread 0.  Runs from several threads queue.

Knob: ``LEZERO_NUM_THREADS`` (default: the cores this process may use).
"""

from __future__ import annotations

import atexit
import ctypes
import os
import struct
import sys
import threading
import time
import weakref
from array import array
from collections.abc import Sequence
from functools import cache

import numpy as np

from lezero import knobs
from lezero.backends.cpu import walker
from lezero.backends.cpu.compiler import core_count, get_kernels
from lezero.backends.cpu.detect import detect
from lezero.backends.cpu.table import RecordTimes, Table, record_times
from lezero.codegen.launch import KernelSource

MAX_THREADS = 1024
_SLICE_NANOSECONDS = 50_000_000
_IDLE_SPINS = 20_000
"""About 0.4 ms: a step of a small network is recorded meanwhile, and waking a worker takes 50 us and more."""
_WAIT_SPINS = 4000
_SCRATCH_LINE = 4096  # scratch areas of two threads never share a page


@cache
def walker_source() -> KernelSource:
    """The code that goes through a table."""
    return walker.source(detect())


class ThreadPool:
    """`threads` threads, counting the caller's.  Workers start at the first run that needs them."""

    def __init__(self, threads: int) -> None:
        if threads < 1:
            raise ValueError(f"a pool needs at least one thread, not {threads}")
        self.threads = threads
        (self._code,) = get_kernels([walker_source()], detect())
        symbols = self._code.symbols
        i64, pointer = ctypes.c_int64, ctypes.c_void_p
        self._walk = ctypes.CFUNCTYPE(i64, pointer, i64)(symbols["walk"])
        self._settle = ctypes.CFUNCTYPE(i64, pointer)(symbols["settle"])
        self._work = ctypes.CFUNCTYPE(None, pointer, i64)(symbols["work"])
        self._stop = ctypes.CFUNCTYPE(None, pointer)(symbols["stop"])
        self._reset()
        _pools.add(self)

    def _reset(self) -> None:
        """A state of our own, and no workers: at the beginning, and in a forked child, which has none of them."""
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._workers: list[threading.Thread] = []
        self._memory = np.zeros(walker.STATE_BYTES // 8 + 16, dtype=np.int64)
        start = -self._memory.ctypes.data % 128 // 8
        self._state = self._memory[start : start + walker.STATE_BYTES // 8]
        self._address = self._state.ctypes.data
        self._scratch = np.empty(0, dtype=np.uint8)
        self._scratch_bytes = 0
        self._put(walker.THREADS, self.threads)
        self._put(walker.IDLE_SPINS, _IDLE_SPINS)
        self._put(walker.WAIT_SPINS, _WAIT_SPINS)
        for word, value in _platform_words().items():
            self._put(word, value)

    def _put(self, offset: int, value: int) -> None:
        self._state[offset // 8] = value

    def run(self, table: Table, bases: Sequence[int]) -> None:
        """Run a table to its end.

        Parameters
        ----------
        table : Table
        bases : at least ``table.bases`` addresses (an ``array("q")`` is taken as it is)

        Raises
        ------
        KeyboardInterrupt
            (Or whatever a signal handler raises.)  Before the first record that overwrites something: the run was
            abandoned.  After it: the run was completed first, and the exception's attribute ``completed`` is True.
            Either way the pool can be used again.
        """
        self._run(table, bases, 0)

    def profile(self, table: Table, bases: Sequence[int]) -> list[RecordTimes]:
        """Run a table and say when each record ran."""
        times = np.zeros((len(table.item_records), walker.PROFILE_WORDS), dtype=np.int64)
        times[:, 0] = np.iinfo(np.int64).max
        self._run(table, bases, times.ctypes.data)
        return record_times(table, times)

    def _run(self, table: Table, bases: Sequence[int], profile: int) -> None:
        if type(bases) is not array:
            bases = array("q", bases)
        if len(bases) < table.bases:
            raise ValueError(f"the table needs {table.bases} base addresses, the run passes {len(bases)}")
        me = threading.get_ident()
        if self._owner == me:
            raise RuntimeError("a signal handler cannot run a computation while it interrupts another one")
        finished = False
        try:
            with self._lock:
                try:
                    self._owner = me
                    if self.threads > 1 and not self._workers and table.words[walker.PARALLEL] > 1:
                        self._start_workers()
                    if table.scratch_bytes > self._scratch_bytes:
                        self._grow_scratch(table.scratch_bytes)
                    _RUN_WORDS.pack_into(self._state.data, 0, table.address, bases.buffer_info()[0], profile, 0)
                    try:
                        # Signal handlers run between two calls.  A run shorter than a slice is one call.
                        while self._walk(self._address, _SLICE_NANOSECONDS) != walker.FINISHED:
                            pass
                        finished = True
                    except BaseException:
                        finished = bool(self._settle(self._address))
                        raise
                finally:
                    self._owner = None
        except BaseException as error:  # letting go of the lock can be interrupted too
            error.completed = finished  # type: ignore[attr-defined]
            raise

    def close(self, patience: float = -1) -> None:
        """Send the workers home, once no run is under way (waits `patience` seconds for that; -1: as long as it takes).

        The pool can still be used; it starts new ones.
        """
        if not self._lock.acquire(timeout=patience):
            return
        try:
            workers, self._workers = self._workers, []
            if workers:
                self._stop(self._address)
                for worker in workers:
                    worker.join()
                self._put(walker.STOP, 0)
        finally:
            self._lock.release()

    def _start_workers(self) -> None:
        for number in range(1, self.threads):
            worker = threading.Thread(target=self._live, args=(number,), name=f"lezero-{number}", daemon=True)
            try:
                worker.start()
            except RuntimeError:  # the system has no more threads, or Python is ending: fewer hands do the same work
                return
            self._workers.append(worker)

    def _live(self, number: int) -> None:
        self._work(self._address, number)  # this frame keeps the pool, and so the state, alive

    def _grow_scratch(self, nbytes: int) -> None:
        stride = -(-nbytes // _SCRATCH_LINE) * _SCRATCH_LINE
        self._scratch = np.empty(stride * self.threads + _SCRATCH_LINE, dtype=np.uint8)
        start = self._scratch.ctypes.data
        self._put(walker.SCRATCH, start + -start % _SCRATCH_LINE)
        self._put(walker.SCRATCH_STRIDE, stride)
        self._scratch_bytes = stride


_RUN_WORDS = struct.Struct("4q")  # TABLE, BASES, PROFILE, NEXT
_pools: weakref.WeakSet[ThreadPool] = weakref.WeakSet()


def _platform_words() -> dict[int, int]:
    """The functions of the operating system that the walker calls, and what it passes them."""
    if sys.platform == "win32":
        kernel32 = ctypes.WinDLL("kernel32")
        frequency = ctypes.c_int64()
        kernel32.QueryPerformanceFrequency(ctypes.byref(frequency))
        clock, unit = kernel32.QueryPerformanceCounter, max(1_000_000_000 // frequency.value, 1)
        nap, length = kernel32.Sleep, 1  # milliseconds
        syscall = None
    else:
        libc = ctypes.CDLL(None)
        clock, unit = libc.clock_gettime, time.CLOCK_MONOTONIC
        nap, length = libc.usleep, 200  # microseconds
        syscall = libc.syscall if sys.platform == "linux" else None
    words = {walker.CLOCK: clock, walker.NAP: nap, walker.SYSCALL: syscall}
    addresses = {word: ctypes.cast(f, ctypes.c_void_p).value or 0 for word, f in words.items() if f is not None}
    return addresses | {walker.CLOCK_UNIT: unit, walker.NAP_LENGTH: length}


# -- the process's pool ----------------------------------------------------------------------------------------

_default: ThreadPool | None = None
_default_lock = threading.Lock()


def default_threads() -> int:
    """``LEZERO_NUM_THREADS``, or the cores this process may use."""
    return knobs.number("LEZERO_NUM_THREADS", core_count(), "a number of threads", 1, MAX_THREADS)


def default_pool() -> ThreadPool:
    """The process's pool, made on first use."""
    global _default
    if _default is None:
        with _default_lock:
            if _default is None:
                _default = ThreadPool(default_threads())
    return _default


def set_num_threads(threads: int) -> None:
    """Use `threads` threads from the next run on."""
    global _default
    if not 1 <= threads <= MAX_THREADS:
        raise ValueError(f"the number of threads must be from 1 to {MAX_THREADS}, not {threads}")
    with _default_lock:
        old, _default = _default, ThreadPool(threads)
    if old is not None:
        old.close()


def get_num_threads() -> int:
    """How many threads runs use."""
    return _default.threads if _default is not None else default_threads()


def _close_all() -> None:
    # At exit: a worker should not be inside native code while Python takes its memory apart.  A daemon thread that is
    # still running a table keeps what that table needs.
    for pool in list(_pools):
        pool.close(patience=1)


def _after_fork_in_child() -> None:
    global _default_lock
    _default_lock = threading.Lock()
    for pool in list(_pools):
        pool._reset()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
