"""ELF relocations: filling in the addresses that the assembler left open.

Everything a kernel refers to lies in its own block, except the few functions of ``EXTERNALS``.  Those may be further
away than a call instruction reaches, so each gets a stub in the block: a jump to an address kept beside it, which
also serves as the entry of the global offset table.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import sys

EXTERNALS = {
    "memcpy": "c", "memmove": "c", "memset": "c",  # LLVM makes these out of loops
    "fmod": "m", "fmodf": "m",  # and these out of frem
}  # fmt: skip
"""Functions a kernel may call, and the C library that has them."""

_X86 = {1: "abs64", 2: "pc32", 4: "plt32", 9: "gotpc", 24: "pc64", 41: "gotpc", 42: "gotpc"}
_ARM = {257: "abs64", 260: "pc64", 261: "pc32", 275: "page", 277: "low0", 278: "low0", 284: "low1", 285: "low2",
        286: "low3", 299: "low4", 282: "branch", 283: "branch", 311: "gotpage", 312: "gotlow3"}  # fmt: skip
_KINDS = {"x86_64": _X86, "aarch64": _ARM}

_STUB = {
    "x86_64": b"\xff\x25\x02\x00\x00\x00\x0f\x0b",  # jmp [rip + 2]; ud2; the address
    "aarch64": struct.pack("<II", 0x58000050, 0xD61F0200),  # ldr x16, .+8; br x16; the address
}


class LoadError(RuntimeError):
    """An object that cannot be loaded; the message says why."""


class Stubs:
    """Stubs of one block, 16 bytes each: 8 of code, then the 8-byte address it jumps to."""

    def __init__(self, machine: str, start: int) -> None:
        self._machine = machine
        self.end = start
        self._places: dict[int, int] = {}

    def prepare(self, kind: int, symbol: int, name: str, value: int | None) -> None:
        """Make room for a stub if the relocation needs one."""
        action = _KINDS[self._machine].get(kind)
        if action is None:
            raise LoadError(f"relocation {kind} of {name or 'a section'} is not one kernels may have")
        if value is None and name not in EXTERNALS:
            raise LoadError(
                f"the kernel calls {name!r}, which nobody provides: the code generator must compute it itself"
            )
        if (value is None or action.startswith("got")) and symbol not in self._places:
            self._places[symbol] = self.end
            self.end += 16

    def write(self, block: bytearray, start: int, symbols: list[tuple[str, int | None]]) -> None:
        for symbol, place in self._places.items():
            name, value = symbols[symbol]
            address = external(name) if value is None else start + value
            block[place : place + 16] = _STUB[self._machine] + struct.pack("<Q", address)

    def code(self, symbol: int) -> int:
        return self._places[symbol]

    def slot(self, symbol: int) -> int:
        return self._places[symbol] + 8


@functools.cache
def external(name: str) -> int:
    """Address of a function of ``EXTERNALS`` in this process."""
    library = ctypes.CDLL(None)
    if not hasattr(library, name):
        library = ctypes.CDLL("libm.dylib" if sys.platform == "darwin" else "libm.so.6")
    address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    assert address is not None
    return address


def relocate(
    block: bytearray, start: int, offset: int, machine: str, kind: int, value: int | None, addend: int,
    stubs: Stubs, symbol: int,
) -> None:  # fmt: skip
    """Apply one relocation to the block that will stand at address `start`.

    In the psABI documents' letters: S is the symbol's address, A the addend, P the place being relocated.
    """
    action = _KINDS[machine][kind]
    if action.startswith("got"):
        s = start + stubs.slot(symbol)
        action = {"gotpc": "pc32", "gotpage": "page", "gotlow3": "low3"}[action]
    elif value is None:
        s = start + stubs.code(symbol)
    else:
        s = start + value
    p = start + offset
    distance = s + addend - p
    if action == "abs64":
        struct.pack_into("<Q", block, offset, (s + addend) % (1 << 64))
    elif action == "pc64":
        struct.pack_into("<q", block, offset, distance)
    elif action in ("pc32", "plt32"):
        struct.pack_into("<i", block, offset, distance)
    else:
        (word,) = struct.unpack_from("<I", block, offset)
        if action == "branch":
            word |= (distance >> 2) & 0x3FFFFFF
        elif action == "page":
            pages = ((s + addend) >> 12) - (p >> 12)
            word |= (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5
        else:  # the low twelve bits of an address, in units of the access
            word |= ((s + addend & 0xFFF) >> int(action[-1])) << 10
        struct.pack_into("<I", block, offset, word)
