"""AMX's instructions as functions over ordinary memory, so that its kernels run on any processor with AVX-512-BF16.

A kernel's text stays as it is, but for the names of the instructions.  The eight registers are one piece of memory, so such a
kernel runs on one thread at a time.  While the registers are not configured, what is stored from them is NaN.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from lezero.codegen.contraction import pairs
from lezero.codegen.contraction.text import Code, Module
from lezero.codegen.launch import KernelSource, Plan
from lezero.codegen.target import TARGETS, Target

TARGET = replace(TARGETS["avx512-bf16"], level="avx512-bf16 with emulated amx", amx=True)
INSTRUCTIONS = ("ldtilecfg", "tilerelease", "tilezero", "tileloadd64", "tilestored64", "tdpbf16ps")
CONFIGURATION = [1, *[0] * 15, *[64, 0] * 8, *[0] * 16, *[16] * 8, *[0] * 8]
"""Palette 1, eight registers of 16 rows of 64 bytes."""
ROW = "<16 x float>"
MEMORY = np.zeros(8 * 16 * 16 + 1, np.float32)
"""The registers, and whether they are configured.  Kernels have no memory of their own."""
REGISTERS = f"inttoptr (i64 {MEMORY.ctypes.data} to ptr)"
READY = f"inttoptr (i64 {MEMORY.ctypes.data + MEMORY.nbytes - 4} to ptr)"


def emulated(plan: Plan) -> Plan:
    """A plan for `TARGET` as one that this processor can run."""
    return Plan([replace(x, source=_emulated(x.source)) for x in plan.launches], plan.workspaces)


def _emulated(source: KernelSource) -> KernelSource:
    def emit(target: Target) -> str:
        text = source.emit(target)
        if "@llvm.x86.tdpbf16ps" not in text:
            return text
        text = re.sub(rf"^declare .*@llvm\.x86\.({'|'.join(INSTRUCTIONS)})\(.*\n", "", text, flags=re.MULTILINE)
        for name in INSTRUCTIONS:
            text = text.replace(f"@llvm.x86.{name}(", f"@emulated.{name}(")
        return _library(target, text) + text

    return replace(source, key=f"emulated at {MEMORY.ctypes.data} {source.key}", emit=emit)


def _library(target: Target, kernel: str) -> str:
    module = Module(target)

    def define(name: str, arguments: str, body: Callable[[Code], object]) -> None:
        c = Code(module, f"emulated.{name}", arguments, internal=True)
        body(c)
        c.finish()

    def place(c: Code, register: str, r: str) -> str:
        number = c.value(f"zext i8 {register} to i64")
        return c.gep(REGISTERS, c.add(c.mul(number, 256), c.mul(r, 16)), "float")

    def configure(c: Code) -> None:
        wanted = ", ".join(f"i8 {x}" for x in CONFIGURATION)
        same = c.value(f"icmp eq <64 x i8> {c.load('<64 x i8>', '%0', 1)}, <{wanted}>")
        ready = c.value(f"icmp eq i64 {c.value(f'bitcast <64 x i1> {same} to i64')}, -1")
        c.store("i8", c.value(f"zext i1 {ready} to i8"), READY, 1)

    def zero(c: Code, r: str) -> None:
        c.store(ROW, "zeroinitializer", place(c, "%0", r), 4)

    def load(c: Code, r: str) -> None:
        c.store(ROW, c.load(ROW, c.gep("%1", c.mul(r, "%2"), "i8"), 1), place(c, "%0", r), 4)

    def store(c: Code, r: str) -> None:
        ready = c.value(f"icmp ne i8 {c.load('i8', READY, 1)}, 0")
        value = c.select(ready, c.load(ROW, place(c, "%0", r), 4), c.splat("0x7FF8000000000000", "float", 16), ROW)
        c.store(ROW, value, c.gep("%1", c.mul(r, "%2"), "i8"), 1)

    def multiply(c: Code, r: str) -> None:
        out = place(c, "%0", r)

        def pair(k: str, total: str) -> list[str]:
            element = c.load("float", c.gep(place(c, "%1", r), k, "float"))
            return [pairs.multiply_add(c, 16, c.splat(element, "float", 16), c.load(ROW, place(c, "%2", k), 4), total)]

        c.store(ROW, c.loop(0, 16, pair, carried=[(ROW, c.load(ROW, out, 4))])[0], out, 4)

    define("ldtilecfg", "ptr %0", configure)
    define("tilerelease", "", lambda c: c.store("i8", 0, READY, 1))
    define("tilezero", "i8 %0", lambda c: c.loop(0, 16, lambda r: zero(c, r)))
    define("tileloadd64", "i8 %0, ptr %1, i64 %2", lambda c: c.loop(0, 16, lambda r: load(c, r)))
    define("tilestored64", "i8 %0, ptr %1, i64 %2", lambda c: c.loop(0, 16, lambda r: store(c, r)))
    define("tdpbf16ps", "i8 %0, i8 %1, i8 %2", lambda c: c.loop(0, 16, lambda r: multiply(c, r)))
    functions = re.sub(r", !llvm\.loop !\d+", "", "\n".join(module.functions))  # the kernel numbers its own
    declared = [x for x in module.declarations.values() if x not in kernel]
    return "\n".join([functions, *declared]) + "\n"
