"""What code is generated for.  Code generation takes a :class:`Target` and never asks the host.

Levels, lowest first: ``generic`` (any LLVM target, 128-bit vectors), ``x86-64``, ``avx2`` (AVX2 + FMA + F16C),
``avx512`` (F, BW, DQ, VL), ``avx512-bf16`` (also VNNI and BF16), ``amx``; ``neon`` on aarch64.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    level: str
    triple: str
    cpu: str  # LLVM's name of the processor model code is scheduled for
    features: str  # LLVM's feature string, "+avx2,+fma,..."
    vector_bytes: int  # width of one vector register
    registers: int  # how many of them
    fma: bool
    f16_convert: bool
    bf16_dot: bool  # vdpbf16ps
    amx: bool
    l2_bytes: int = 1 << 20
    effort: int = 3  # LLVM's, 0 to 3

    def lanes(self, itemsize: int) -> int:
        """Elements of `itemsize` bytes in one vector register."""
        return self.vector_bytes // itemsize


LEVELS = ("generic", "x86-64", "avx2", "avx512", "avx512-bf16", "amx")
ARM_LEVELS = ("generic", "neon")

_X86 = "x86_64-unknown-linux-gnu"
_AVX2 = "+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+popcnt,+sse4.2"
_AVX512 = _AVX2 + ",+avx512f,+avx512bw,+avx512dq,+avx512vl,+avx512cd"
_BF16 = _AVX512 + ",+avx512vnni,+avx512bf16"

TARGETS: dict[str, Target] = {
    "generic": Target("generic", _X86, "x86-64", "", 16, 16, False, False, False, False),
    "x86-64": Target("x86-64", _X86, "x86-64", "+sse2", 16, 16, False, False, False, False),
    "avx2": Target("avx2", _X86, "haswell", _AVX2, 32, 16, True, True, False, False),
    "avx512": Target("avx512", _X86, "skylake-avx512", _AVX512, 64, 32, True, True, False, False),
    "avx512-bf16": Target("avx512-bf16", _X86, "cooperlake", _BF16, 64, 32, True, True, True, False),
    "amx": Target(
        "amx", _X86, "sapphirerapids", _BF16 + ",+amx-tile,+amx-bf16,+amx-int8", 64, 32, True, True, True, True
    ),
    "neon": Target("neon", "aarch64-unknown-linux-gnu", "generic", "+neon", 16, 32, True, True, False, False),
}
