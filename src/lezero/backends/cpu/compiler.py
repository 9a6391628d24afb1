"""Kernel sources in, loaded kernels out: from memory, from disk, or compiled.

llvmlite runs one compilation at a time per process, so many missing kernels are shared with helper processes
(``compile_worker.py``).  A helper that cannot start, dies or disagrees costs nothing but its help: the kernel is
compiled here.

llvmlite also never gives back a pass pipeline (75 KiB for each compilation, measured with 0.50, whose disposal does
nothing, and a pipeline runs only once).  So this process compiles a limited number itself; after that helpers do it
all, and are replaced before they grow.

Knob: ``LEZERO_COMPILE_WORKERS``, the number of helpers (default: one less than the cores; 0: never any).
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from lezero import knobs
from lezero.backends.cpu import compile_worker, kernel_cache
from lezero.backends.cpu.kernel_cache import CacheStats, DiskCache, MemoryCache
from lezero.backends.cpu.loader import LoadedKernel, LoadError, load
from lezero.codegen import llvm
from lezero.codegen.launch import KernelSource
from lezero.codegen.target import Target

_WORTH_HELP = 6  # missing kernels; a helper needs as long to start as three or four take to compile
_MANY = 24  # missing kernels from which on helpers compile them all and end: LLVM takes 100 MB in each process
_LARGE = 8 << 20  # bytes of what the kernels are for, from which on helpers compile them however few they are
_IDLE_SECONDS = 60
_OWN_COMPILATIONS = 200  # in this process, 15 MB
_HELPER_COMPILATIONS = 1000  # in a helper, before the next batch gets a new one


class Compiler:
    """The caches and the helpers of one process.  Safe to call from several threads."""

    def __init__(self, disk: DiskCache | None = None, memory: MemoryCache | None = None) -> None:
        self.disk = DiskCache(kernel_cache.cache_folder(), kernel_cache.cache_limit()) if disk is None else disk
        self.memory = MemoryCache() if memory is None else memory
        worker_count()  # a wrong knob is told now, not when helpers are first worth it
        self.compiled = self.misses = self.disk_hits = self.memory_hits = 0
        self._own = 0  # compilations in this process
        self._helpers: list[_Helper] = []
        self._lock = threading.RLock()  # one batch at a time: no key is compiled twice at once

    def get_kernels(self, sources: Sequence[KernelSource], target: Target, nbytes: int = 0) -> list[LoadedKernel]:
        """Loaded kernels for `sources`, in order; equal keys share one.

        nbytes : memory that is needed to run them, in which LLVM's would be a burden

        Raises
        ------
        CompileError, LoadError
            If LLVM refuses a kernel's code, or it cannot be loaded: a fault of the code generator.
        """
        by_key: dict[str, str] = {}  # most of a network's launches are of few kernels
        for source in sources:
            if source.key not in by_key:
                by_key[source.key] = kernel_cache.digest(source, target)
        digests = [by_key[source.key] for source in sources]
        wanted = dict(zip(digests, sources))
        found: dict[str, LoadedKernel] = {}
        missing = self._look_in_memory(wanted, found)
        if missing:
            with self._lock:
                # Another thread may have had them compiled while this one waited.
                missing = self._look_on_disk(self._look_in_memory(missing, found), found)
                self.misses += len(missing)
                for name, image in self._compile(missing, target, nbytes).items():
                    self.disk.write(name, image)
                    self._keep(name, load(image), found)
        return [found[name] for name in digests]

    def stats(self) -> CacheStats:
        entries, nbytes = self.disk.size()
        return CacheStats(
            str(self.disk.folder), entries, nbytes, self.disk.limit, len(self.memory),
            self.memory_hits, self.disk_hits, self.misses, self.compiled, self.disk.damaged,
        )  # fmt: skip

    def clear(self) -> int:
        """Forget all kernels, on disk and in memory (tables keep theirs); how many were on disk."""
        self.memory.clear()
        return self.disk.clear()

    def close(self) -> None:
        """End the helpers."""
        while self._helpers:
            self._helpers.pop().close()

    def _look_in_memory(
        self, wanted: dict[str, KernelSource], found: dict[str, LoadedKernel]
    ) -> dict[str, KernelSource]:
        for name in wanted:
            kernel = self.memory.get(name)
            if kernel is not None:
                found[name] = kernel
                self.memory_hits += 1
        return {name: source for name, source in wanted.items() if name not in found}

    def _look_on_disk(self, wanted: dict[str, KernelSource], found: dict[str, LoadedKernel]) -> dict[str, KernelSource]:
        for name in wanted:
            image = self.disk.read(name)
            if image is not None:
                # A file that passed its checksum and still does not load is as good as none.
                with suppress(LoadError):
                    self._keep(name, load(image), found)
                    self.disk_hits += 1
        return {name: source for name, source in wanted.items() if name not in found}

    def _keep(self, name: str, kernel: LoadedKernel, found: dict[str, LoadedKernel]) -> None:
        self.memory.put(name, kernel)
        found[name] = kernel

    def _compile(self, missing: dict[str, KernelSource], target: Target, nbytes: int) -> dict[str, bytes]:
        """Objects of all `missing`, with as many hands as it is worth."""
        todo = deque(missing.items())
        images: dict[str, bytes] = {}
        emitting = threading.Lock()  # code generation is plain Python and need not be safe to enter twice

        def next_text() -> tuple[str, str] | None:
            with emitting:
                if not todo:
                    return None
                name, source = todo.popleft()
                return name, source.emit(target)

        def feed(helper: _Helper) -> None:
            with suppress(Exception):  # whatever is left undone here is done, or fails, below
                while (task := next_text()) is not None:
                    image = helper.compile(task[1], target)
                    if image is None:
                        return
                    images[task[0]] = image

        alone = _helpers_alone(len(missing), nbytes)
        helpers = self._get_helpers(len(missing), alone)
        aside = bool(helpers) and alone
        feeders = [threading.Thread(target=feed, args=(h,), daemon=True) for h in helpers]
        for feeder in feeders:
            feeder.start()
        try:
            while not (aside or (feeders and self._own >= _OWN_COMPILATIONS)) and (task := next_text()) is not None:
                images[task[0]] = self._compile_here(task[1], target)
            for feeder in feeders:
                feeder.join()
        except BaseException:
            todo.clear()
            self.close()  # answers may be under way that nobody will read
            for feeder in feeders:
                feeder.join()
            raise
        if aside and len(missing) >= _MANY:
            self.close()  # what is compiled for runs now, and may need the memory
        for name in missing.keys() - images.keys():
            images[name] = self._compile_here(missing[name].emit(target), target)
        self.compiled += len(images)
        return images

    def _compile_here(self, text: str, target: Target) -> bytes:
        self._own += 1
        return llvm.compile_to_object(text, target)

    def _get_helpers(self, kernels: int, alone: bool) -> list[_Helper]:
        most = worker_count() + alone  # one more in this process's place
        wanted = min(most, kernels // (_WORTH_HELP // 2)) if kernels >= _WORTH_HELP else int(alone)
        if self._own >= _OWN_COMPILATIONS and not workers_forbidden():
            wanted = max(wanted, 1)
        for helper in list(self._helpers):
            if not helper.alive() or helper.compiled >= _HELPER_COMPILATIONS:
                self._helpers.remove(helper)
                helper.close()
        while len(self._helpers) < wanted:
            started = _Helper.start()
            if started is None:
                break
            self._helpers.append(started)
        return self._helpers[:wanted]

    def _forget_after_fork(self) -> None:
        """In a forked child: the helpers are the parent's, and a lock may be held by a thread that is not here."""
        for helper in self._helpers:
            helper.abandon()
        self._helpers = []
        self._lock = threading.RLock()
        self.memory._lock = threading.Lock()


class _Helper:
    """The parent's end of one helper process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.compiled = 0

    @classmethod
    def start(cls) -> _Helper | None:
        if not sys.executable:
            return None
        command = [sys.executable, "-S", "-E", compile_worker.__file__, llvm.__file__,
                   json.dumps([path or os.getcwd() for path in sys.path]), str(_IDLE_SECONDS)]  # fmt: skip
        # A process group of its own: Ctrl-C at the terminal is for the user's program.
        own_group: dict[str, Any] = {} if sys.platform == "win32" else {"process_group": 0}
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **own_group
            )
        except OSError:
            return None
        return cls(process)

    def alive(self) -> bool:
        return self._process.poll() is None

    def compile(self, text: str, target: Target) -> bytes | None:
        """The object, or None if the helper is gone or LLVM refused (compiling here will tell why)."""
        requests, replies = self._process.stdin, self._process.stdout
        assert requests is not None and replies is not None
        try:
            for part in (target.triple, target.cpu, target.features, str(target.effort), text):
                compile_worker.write_string(requests, part.encode())
            requests.flush()
            good = replies.read(1)
            image = compile_worker.read_string(replies)
        except (OSError, ValueError):
            return None
        self.compiled += 1
        return image if good == b"\1" else None

    def close(self) -> None:
        """End the process; one in the middle of a compilation is not waited for."""
        self._process.kill()
        self.abandon()
        with suppress(OSError, subprocess.TimeoutExpired):
            self._process.wait(timeout=5)

    def abandon(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError, ValueError):
                stream.close()  # type: ignore[union-attr]


def worker_count() -> int:
    """``LEZERO_COMPILE_WORKERS``, or one less than the cores this process may use."""
    what = "a number of helper processes (0 to compile in this process only)"
    return knobs.number("LEZERO_COMPILE_WORKERS", core_count() - 1, what, 0, 1024)


def _helpers_alone(kernels: int, nbytes: int) -> bool:
    """Whether this process leaves a batch to its helpers; where their number was asked for, it takes part."""
    return (kernels >= _MANY or nbytes >= _LARGE) and not os.environ.get("LEZERO_COMPILE_WORKERS", "").strip()


def workers_forbidden() -> bool:
    """Whether ``LEZERO_COMPILE_WORKERS=0`` was asked for, as against a machine with one core."""
    return os.environ.get("LEZERO_COMPILE_WORKERS", "").strip() == "0"


def core_count() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_default: Compiler | None = None
_default_lock = threading.Lock()


def default() -> Compiler:
    """The process's compiler, made on first use."""
    global _default
    with _default_lock:
        if _default is None:
            _default = Compiler()
            atexit.register(_default.close)
        return _default


def get_kernels(sources: Sequence[KernelSource], target: Target, nbytes: int = 0) -> list[LoadedKernel]:
    """Loaded kernels for `sources`, in order, through the process's caches (see `Compiler.get_kernels`)."""
    return default().get_kernels(sources, target, nbytes)


def _after_fork_in_child() -> None:
    global _default_lock
    _default_lock = threading.Lock()
    if _default is not None:
        _default._forget_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
