"""Place compiled kernels in executable memory, and give the memory back.

ORC's links slow down and leave memory behind as an instance fills, and a training process replaces kernels for
ever.  So ELF objects for x86-64 and aarch64 Linux are loaded here: sections are copied into whole pages of one large
reservation, a dozen kinds of relocation are applied, and the pages turn from writable to executable (never both).
Pages are private to the process, so a forked child may load and unload without disturbing its parent.

Where there is no ELF loader of ours (macOS, Windows) LLVM's MCJIT does the work, one engine per kernel.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import mmap
import os
import platform
import struct
import sys
import threading
from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from lezero.backends.cpu.relocate import LoadError, Stubs, relocate

_PAGE = mmap.PAGESIZE
_REGION_BYTES = 256 << 20  # of address space; pages cost memory only when code is placed in them

_SHT_SYMTAB, _SHT_RELA, _SHT_NOBITS = 2, 4, 8
_SHF_WRITE, _SHF_ALLOC = 1, 2
_SHN_UNDEF, _SHN_ABS, _SHN_COMMON = 0, 0xFFF1, 0xFFF2
_MACHINES = {62: "x86_64", 183: "aarch64"}


class LoadedKernel:
    """Machine code in memory; its pages are reused once nobody holds this object.

    Attributes
    ----------
    address, combine_address : int
        Where ``kernel`` and ``combine`` start (0 if the object does not define it).
    symbols : dict
        Every global function the object defines, by name.
    nbytes : int
        Executable memory it takes.
    """

    __slots__ = ("__weakref__", "_release", "nbytes", "symbols")

    def __init__(self, symbols: dict[str, int], nbytes: int, release: Callable[[], None]) -> None:
        self.symbols = symbols
        self.nbytes = nbytes
        self._release = release

    @property
    def address(self) -> int:
        return self.symbols.get("kernel", 0)

    @property
    def combine_address(self) -> int:
        return self.symbols.get("combine", 0)

    def __del__(self) -> None:
        self._release()


def load(image: bytes) -> LoadedKernel:
    """Load a relocatable object.

    Raises
    ------
    LoadError
        If the object is not one this process can run, has writable data, or needs a function from outside that is
        not in ``EXTERNALS``.
    """
    if _own_loader():
        return _load_elf(image)
    return _load_mcjit(image)


def executable_bytes() -> int:
    """Executable memory in use, in bytes."""
    return _memory.used()


def _own_loader() -> bool:
    return sys.platform == "linux" and platform.machine() in _MACHINES.values()


# -- ELF --------------------------------------------------------------------------------------------------------


@dataclass
class _Section:
    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    place: int = -1  # offset in the kernel's block, if it is loaded


def _load_elf(image: bytes) -> LoadedKernel:
    start = pages = 0

    def take(nbytes: int) -> int:
        nonlocal start, pages
        pages = -(-nbytes // _PAGE)
        start = _memory.take(pages)
        return start

    try:
        block, exported = link(image, platform.machine(), take)
        _memory.write(start, block)
    except BaseException:
        if start:
            _memory.give(start, pages)
        raise
    return LoadedKernel(exported, pages * _PAGE, functools.partial(_memory.give, start, pages))


def link(image: bytes, machine: str, take: Callable[[int], int]) -> tuple[bytearray, dict[str, int]]:
    """Turn an object into the bytes that go to address ``take(nbytes)``, and the addresses of its functions."""
    if image[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", image, 16)[0] != 1:
        raise LoadError("not a 64-bit little-endian relocatable ELF object")
    made_for = _MACHINES.get(struct.unpack_from("<H", image, 18)[0], "an unknown processor")
    if made_for != machine:
        raise LoadError(f"the object is for {made_for}, this process runs on {machine}")
    sections = _sections(image)
    size = _lay_out(sections)
    symbols = _symbols(image, sections)
    relocations = [r for s in sections if s.kind == _SHT_RELA and sections[s.info].place >= 0
                   for r in _relocations(image, s, sections[s.info].place)]  # fmt: skip
    stubs = Stubs(machine, -(-size // 16) * 16)
    for _, kind, symbol, _ in relocations:
        stubs.prepare(kind, symbol, *symbols[symbol])
    block = bytearray(stubs.end)
    for s in sections:
        if s.place >= 0 and s.kind != _SHT_NOBITS:
            block[s.place : s.place + s.size] = image[s.offset : s.offset + s.size]
    start = take(len(block))
    stubs.write(block, start, symbols)
    for offset, kind, symbol, addend in relocations:
        relocate(block, start, offset, machine, kind, symbols[symbol][1], addend, stubs, symbol)
    return block, {name: start + value for name, value in _exported(image, sections)}


def _sections(image: bytes) -> list[_Section]:
    (table,) = struct.unpack_from("<Q", image, 40)
    entry, count, names = struct.unpack_from("<HHH", image, 58)
    raw = [struct.unpack_from("<IIQQQQIIQQ", image, table + i * entry) for i in range(count)]
    strings = raw[names][4]
    return [_Section(_string(image, strings + r[0]), r[1], r[2], r[4], r[5], r[6], r[7], max(r[8], 1)) for r in raw]


def _lay_out(sections: list[_Section]) -> int:
    """Give every section that is needed at run time its place in the block; unwind tables are not needed."""
    end = 0
    for s in sections:
        if not s.flags & _SHF_ALLOC or s.size == 0 or s.name == ".eh_frame":
            continue
        # Constant tables of addresses (.data.rel.ro) are written by relocation only, before the pages are sealed.
        if s.flags & _SHF_WRITE and not s.name.startswith(".data.rel.ro"):
            raise LoadError(f"the object has writable data (section {s.name}); kernels may only have constants")
        s.place = -(-end // s.align) * s.align
        end = s.place + s.size
    return end


def _symbol_table(image: bytes, sections: list[_Section]):
    for table in sections:
        if table.kind == _SHT_SYMTAB:
            strings = sections[table.link].offset
            for at in range(table.offset, table.offset + table.size, 24):
                name, info, _, section, value, _ = struct.unpack_from("<IBBHQQ", image, at)
                yield _string(image, strings + name), info, section, value


def _symbols(image: bytes, sections: list[_Section]) -> list[tuple[str, int | None]]:
    """(name, offset in the block) of each symbol; None for those another object would define."""
    found: list[tuple[str, int | None]] = []
    for name, _, section, value in _symbol_table(image, sections):
        if section in (_SHN_UNDEF, _SHN_ABS, _SHN_COMMON) or section >= len(sections) or sections[section].place < 0:
            found.append((name, None))
        else:
            found.append((name, sections[section].place + value))
    return found


def _exported(image: bytes, sections: list[_Section]):
    for name, info, section, value in _symbol_table(image, sections):
        if info == 0x12 and 0 < section < len(sections):  # a global function
            yield name, sections[section].place + value


def _relocations(image: bytes, table: _Section, place: int):
    for at in range(table.offset, table.offset + table.size, 24):
        offset, info, addend = struct.unpack_from("<QQq", image, at)
        yield place + offset, info & 0xFFFFFFFF, info >> 32, addend


def _string(image: bytes, at: int) -> str:
    return image[at : image.index(b"\0", at)].decode()


# -- executable memory ------------------------------------------------------------------------------------------


class _ExecutableMemory:
    """Whole pages out of large reservations.  Free runs of pages are kept sorted and joined with their neighbours.

    Kernels are dropped by the garbage collector, that is at any moment and on any thread, so giving pages back only
    appends to a queue; the next `take` works it off under the lock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._returned: deque[tuple[int, int]] = deque()
        self._free: list[tuple[int, int]] = []  # (address, pages)
        self._reserved = 0

    def take(self, pages: int) -> int:
        with self._lock:
            self._collect()
            i = next((i for i, (_, length) in enumerate(self._free) if length >= pages), None)
            if i is None:
                i = self._reserve(pages)
            start, length = self._free[i]
            if length == pages:
                del self._free[i]
            else:
                self._free[i] = (start + pages * _PAGE, length - pages)
            return start

    def give(self, start: int, pages: int) -> None:
        self._returned.append((start, pages))

    def write(self, start: int, content: bytearray) -> None:
        _protect(start, len(content), mmap.PROT_READ | mmap.PROT_WRITE)
        ctypes.memmove(start, (ctypes.c_char * len(content)).from_buffer(content), len(content))
        _protect(start, len(content), mmap.PROT_READ | mmap.PROT_EXEC)
        _flush_instruction_cache(start, len(content))

    def used(self) -> int:
        with self._lock:
            self._collect()
            return self._reserved - sum(length for _, length in self._free) * _PAGE

    def _collect(self) -> None:
        while self._returned:
            start, length = self._returned.popleft()
            insort(self._free, (start, length))
            i = self._free.index((start, length))
            if i + 1 < len(self._free) and start + length * _PAGE == self._free[i + 1][0]:
                length += self._free.pop(i + 1)[1]
                self._free[i] = (start, length)
            if i and self._free[i - 1][0] + self._free[i - 1][1] * _PAGE == start:
                before = self._free[i - 1]
                self._free[i - 1 : i + 1] = [(before[0], before[1] + length)]

    def _reserve(self, pages: int) -> int:
        """Add a run of at least `pages` pages; its index in the list."""
        # Straight from libc and never unmapped: threads of the pool may still be in this code while Python, on its
        # way out, collects what it likes.
        nbytes = max(_REGION_BYTES, pages * _PAGE)
        start = _libc().mmap(
            None, nbytes, mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0
        )
        if start in (None, ctypes.c_void_p(-1).value):
            raise MemoryError(
                f"could not reserve {nbytes} bytes of executable memory (a security policy may forbid it)"
            )
        self._reserved += nbytes
        insort(self._free, (start, nbytes // _PAGE))
        return self._free.index((start, nbytes // _PAGE))


_memory = _ExecutableMemory()


def _forget_lock_after_fork() -> None:
    _memory._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lock_after_fork)


# -- what the operating system does for us ----------------------------------------------------------------------


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


def _protect(start: int, nbytes: int, protection: int) -> None:
    if _libc().mprotect(start, nbytes, protection):
        raise MemoryError(f"the operating system refused to change the protection of kernel memory "
                          f"(errno {ctypes.get_errno()})")  # fmt: skip


# -- what the platform does not do by itself --------------------------------------------------------------------

_FLUSH_IR = """
define void @flush(i64 %start, i64 %end) nounwind {
  %first = and i64 %start, -16
  br label %clean
clean:
  %a = phi i64 [ %first, %0 ], [ %a.next, %clean ]
  call void asm sideeffect "dc cvau, $0", "r,~{memory}"(i64 %a)
  %a.next = add i64 %a, 16
  %a.more = icmp ult i64 %a.next, %end
  br i1 %a.more, label %clean, label %cleaned
cleaned:
  call void asm sideeffect "dsb ish", "~{memory}"()
  br label %drop
drop:
  %b = phi i64 [ %first, %cleaned ], [ %b.next, %drop ]
  call void asm sideeffect "ic ivau, $0", "r,~{memory}"(i64 %b)
  %b.next = add i64 %b, 16
  %b.more = icmp ult i64 %b.next, %end
  br i1 %b.more, label %drop, label %dropped
dropped:
  call void asm sideeffect "dsb ish\\0Aisb", "~{memory}"()
  ret void
}
"""
_flush: Callable[[int, int], None] | None = None
_engines: list[object] = []


def _flush_instruction_cache(start: int, nbytes: int) -> None:
    """x86 keeps its instruction cache coherent; on aarch64 the new code must be pushed through by hand."""
    global _flush
    if platform.machine() != "aarch64":
        return
    if _flush is None:
        from lezero.backends.cpu.detect import detect
        from lezero.codegen.llvm import compile_to_object

        kernel = _load_mcjit(compile_to_object(_FLUSH_IR, detect()))
        _engines.append(kernel)
        _flush = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(kernel.symbols["flush"])
    _flush(start, start + nbytes)


_serial = itertools.count()


def _load_mcjit(image: bytes) -> LoadedKernel:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    empty = llvm.parse_assembly("")
    empty.name = f"host{next(_serial)}"
    engine = llvm.create_mcjit_compiler(empty, machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(image))
    engine.finalize_object()
    names = ("kernel", "combine", "flush", "walk", "settle", "work", "stop")
    symbols = {name: address for name in names if (address := engine.get_function_address(name))}
    return LoadedKernel(symbols, len(image), engine.close)
