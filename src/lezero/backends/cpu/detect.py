"""Which level this processor runs, and the :class:`Target` that describes it.

On Linux everything comes from ``/proc/cpuinfo`` and sysfs, without loading LLVM; elsewhere llvmlite is asked.
``LEZERO_CPU`` lowers the level, so that one machine tests all levels below its own, and ``LEZERO_COMPILE_EFFORT`` what
LLVM does: at 0 kernels are compiled in a tenth of the time, and take several times theirs.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from lezero import knobs
from lezero.codegen.target import ARM_LEVELS, LEVELS, TARGETS, Target
from lezero.knobs import KnobError

# LLVM's feature names where the kernel's differ.
_KERNEL_NAMES = {"bmi": "bmi1", "lzcnt": "abm", "sse4.2": "sse4_2", "avx512vnni": "avx512_vnni",
                 "avx512bf16": "avx512_bf16", "amx-tile": "amx_tile", "amx-bf16": "amx_bf16",
                 "amx-int8": "amx_int8"}  # fmt: skip

_ARCH_REQ_XCOMP_PERM = 0x1023
_XFEATURE_XTILEDATA = 18
_SYS_ARCH_PRCTL = 158


@functools.cache
def available_levels() -> tuple[str, ...]:
    """Levels this processor and operating system can run, lowest first."""
    machine = platform.machine().lower()
    if machine in ("aarch64", "arm64"):
        return ARM_LEVELS
    if machine not in ("x86_64", "amd64"):
        return ("generic",)
    has = _features()
    found = ["generic"]
    for level in LEVELS[1:]:
        wanted = [name[1:] for name in TARGETS[level].features.split(",")]
        if not all(name in has or _KERNEL_NAMES.get(name) in has for name in wanted):
            break
        if TARGETS[level].amx and not _request_amx():
            break
        found.append(level)
    return tuple(found)


def detect() -> Target:
    """The target to generate code for: the best level available, at most ``LEZERO_CPU``.

    Raises
    ------
    KnobError
        If ``LEZERO_CPU`` names no level, or one that this processor does not have, or ``LEZERO_COMPILE_EFFORT`` is no effort.
    """
    effort = knobs.number("LEZERO_COMPILE_EFFORT", 3, "how much LLVM optimises", 0, 3)
    return _target(os.environ.get("LEZERO_CPU", "").strip().lower(), effort)


@functools.cache
def _target(limit: str, effort: int) -> Target:
    levels = available_levels()
    level = limit or levels[-1]
    if level not in levels:
        why = "this processor does not have it" if level in TARGETS else "there is no such level"
        raise KnobError(f"LEZERO_CPU={limit!r}: {why}; on this machine it can be one of {', '.join(levels)}")
    changes: dict[str, Any] = {"triple": _triple(), "effort": effort, **_cache_size()}
    if level == "generic":
        changes["cpu"] = ""  # LLVM's baseline of whatever the triple says
    return replace(TARGETS[level], **changes)


def _triple() -> str:
    machine = platform.machine().lower()
    if sys.platform == "linux" and machine in ("x86_64", "aarch64"):
        return f"{machine}-unknown-linux-gnu"
    import llvmlite.binding as llvm

    # MCJIT links ELF everywhere, and on Windows its COFF linker is the less tried one.
    return llvm.get_process_triple() + ("-elf" if sys.platform == "win32" else "")


def _features() -> frozenset[str]:
    if sys.platform == "linux":
        try:
            flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        except OSError:
            flags = None
        if flags:
            return frozenset(flags[1].split())
    import llvmlite.binding as llvm

    return frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)


def _request_amx() -> bool:
    """Linux hands out the tile registers only to a process that asked (threads inherit the permission)."""
    if sys.platform != "linux":
        return False
    return ctypes.CDLL(None).syscall(_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA) == 0


def _cache_size() -> dict[str, int]:
    """L2's bytes where sysfs tells; the table's default elsewhere."""
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            level, size = ((index / name).read_text().strip() for name in ("level", "size"))
        except OSError:
            continue
        digits = re.fullmatch(r"(\d+)([KM]?)", size)
        if level == "2" and digits:
            return {"l2_bytes": int(digits[1]) << {"": 0, "K": 10, "M": 20}[digits[2]]}
    return {}
