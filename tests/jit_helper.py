"""Compile and call kernels from their LLVM IR text: all the tests of code generation need."""

from __future__ import annotations

import ctypes

import llvmlite.binding as llvm
import numpy as np

from lezero.backends.cpu.loader import load
from lezero.codegen.llvm import compile_to_object
from lezero.codegen.target import Target

ALLOWED = {"memcpy", "memset", "memmove"}
NEEDS = {
    "generic": (), "x86-64": (), "avx2": ("avx2", "fma", "f16c"), "avx512": ("avx512f", "avx512bw", "avx512dq", "avx512vl"),
    "avx512-bf16": ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512bf16", "avx512vnni"),
}  # fmt: skip
_host = llvm.get_host_cpu_features()
LEVELS = [level for level, needs in NEEDS.items() if all(_host.get(f) for f in needs)]
SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


class Compiled:
    """Machine code of one module."""

    def __init__(self, text: str, target: Target) -> None:
        self.object = compile_to_object(text, target)
        undefined = undefined_symbols(self.object)
        assert undefined <= ALLOWED, f"external symbols: {undefined}"
        self.loaded = load(self.object)

    def function(self, name: str):
        return SIGNATURE(self.loaded.symbols[name])

    def __call__(self, arrays, params=(), tasks=1, scratch=0, name="kernel") -> None:
        """Run every task, with poisoned scratch memory."""
        buffers = (ctypes.c_void_p * max(len(arrays), 1))(*(a.ctypes.data for a in arrays))
        numbers = (ctypes.c_int64 * max(len(params), 1))(*params)
        raw = np.empty(scratch + 64, np.uint8)
        aligned = (raw.ctypes.data + 63) & ~63
        function = self.function(name)
        for task in range(tasks):
            raw[:] = 0xFF
            function(ctypes.addressof(buffers), ctypes.addressof(numbers), task, tasks, aligned)


def undefined_symbols(obj: bytes) -> set[str]:
    """Names an ELF object expects from elsewhere."""
    image = llvm.ObjectFileRef.from_data(obj)
    sections = {s.name(): s.data() for s in image.sections() if s.name()}
    table, names = sections[b".symtab"], sections[b".strtab"]
    found = set()
    for start in range(24, len(table), 24):
        name = int.from_bytes(table[start : start + 4], "little")
        home = int.from_bytes(table[start + 6 : start + 8], "little")
        if home == 0 and name:
            found.add(names[name : names.index(b"\0", name)].decode())
    return found
