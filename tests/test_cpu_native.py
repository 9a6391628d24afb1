"""The native machinery of the CPU backend: loading, caching, compiling, tables, threads and memory."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import struct
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from lezero.backends.cpu import compiler as compiler_module
from lezero.backends.cpu import detect, loader, walker
from lezero.backends.cpu.arena import Allocator, Arena, alloc, size_class
from lezero.backends.cpu.compiler import Compiler
from lezero.backends.cpu.kernel_cache import DiskCache, MemoryCache, cache_folder, cache_limit, digest
from lezero.backends.cpu.pool import ThreadPool
from lezero.backends.cpu.relocate import external
from lezero.backends.cpu.table import TableBuilder
from lezero.codegen.launch import KernelSource
from lezero.codegen.llvm import CompileError, compile_to_object
from lezero.codegen.target import LEVELS, TARGETS

linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")

# x[i] += y[i] for the task's share of i < params[0].
ADD = """
define void @kernel(ptr %b, ptr %p, i64 %task, i64 %tasks, ptr %s) {
entry:
  %n = load i64, ptr %p
  %x = load ptr, ptr %b
  %y.at = getelementptr ptr, ptr %b, i64 1
  %y = load ptr, ptr %y.at
  br label %loop
loop:
  %i = phi i64 [ %task, %entry ], [ %next, %body ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %body, label %out
body:
  %xi = getelementptr double, ptr %x, i64 %i
  %yi = getelementptr double, ptr %y, i64 %i
  %a = load double, ptr %xi
  %c = load double, ptr %yi
  %sum = fadd double %a, %c
  store double %sum, ptr %xi
  %next = add i64 %i, %tasks
  br label %loop
out:
  ret void
}
"""

# partial[task] = sum of the task's share of x; combine: result[0] = sum of params[1] partials.
SUM = """
define internal double @total(ptr %x, i64 %first, i64 %step, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [ %first, %entry ], [ %next, %body ]
  %acc = phi double [ 0.0, %entry ], [ %sum, %body ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %body, label %out
body:
  %xi = getelementptr double, ptr %x, i64 %i
  %a = load double, ptr %xi
  %sum = fadd double %acc, %a
  %next = add i64 %i, %step
  br label %loop
out:
  ret double %acc
}
define void @kernel(ptr %b, ptr %p, i64 %task, i64 %tasks, ptr %s) {
  %n = load i64, ptr %p
  %x = load ptr, ptr %b
  %partial.at = getelementptr ptr, ptr %b, i64 1
  %partial = load ptr, ptr %partial.at
  %sum = call double @total(ptr %x, i64 %task, i64 %tasks, i64 %n)
  store double %sum, ptr %s
  %kept = load double, ptr %s
  %to = getelementptr double, ptr %partial, i64 %task
  store double %kept, ptr %to
  ret void
}
define void @combine(ptr %b, ptr %p, i64 %task, i64 %tasks, ptr %s) {
  %parts.at = getelementptr i64, ptr %p, i64 1
  %parts = load i64, ptr %parts.at
  %partial.at = getelementptr ptr, ptr %b, i64 1
  %partial = load ptr, ptr %partial.at
  %result.at = getelementptr ptr, ptr %b, i64 2
  %result = load ptr, ptr %result.at
  %sum = call double @total(ptr %partial, i64 0, i64 1, i64 %parts)
  store double %sum, ptr %result
  ret void
}
"""

# Takes its time: counts params[0] down, then adds 1 to its operand.
SLOW = """
define void @kernel(ptr %b, ptr %p, i64 %task, i64 %tasks, ptr %s) {
entry:
  %n = load i64, ptr %p
  %x = load ptr, ptr %b
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %next = add i64 %i, 1
  store volatile i64 %i, ptr %s
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %out
out:
  %old = atomicrmw add ptr %x, i64 1 monotonic
  ret void
}
"""


def source(text: str, name: str = "test") -> KernelSource:
    return KernelSource(name, text, lambda target: text)


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    compiler = Compiler(DiskCache(tmp_path_factory.mktemp("kernels")))
    yield compiler
    compiler.close()


@pytest.fixture(scope="module")
def kernels(compiler):
    add, total, slow = compiler.get_kernels([source(ADD), source(SUM), source(SLOW)], detect.detect())
    return {"add": add, "sum": total, "slow": slow}


@pytest.fixture(params=[1, 2, 3])
def pool(request):
    pool = ThreadPool(request.param)
    yield pool
    pool.close()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def addresses(*arrays: np.ndarray) -> np.ndarray:
    return np.array([array.ctypes.data for array in arrays], dtype=np.int64)


# -- target ------------------------------------------------------------------------------------------------------


def test_every_available_level_can_be_chosen(monkeypatch):
    for level in detect.available_levels():
        monkeypatch.setenv("LEZERO_CPU", level.upper())
        assert detect.detect().level == level


@pytest.mark.parametrize("level", ["turbo", "neon" if detect.available_levels()[-1] in LEVELS else "amx"])
def test_an_impossible_level_is_refused_with_the_possible_ones(monkeypatch, level):
    monkeypatch.setenv("LEZERO_CPU", level)
    with pytest.raises(ValueError, match=f"LEZERO_CPU='{level}'.*generic"):
        detect.detect()


def test_how_much_llvm_optimises_can_be_chosen(monkeypatch):
    monkeypatch.setenv("LEZERO_COMPILE_EFFORT", "0")
    quick = detect.detect()
    monkeypatch.delenv("LEZERO_COMPILE_EFFORT")
    usual = detect.detect()
    assert (quick.effort, usual.effort) == (0, 3) and digest(source(ADD), quick) != digest(source(ADD), usual)
    images = [compile_to_object(ADD, target) for target in (quick, usual)]
    assert images[0] != images[1]
    helper = compiler_module._Helper.start()
    assert [helper.compile(ADD, target) for target in (quick, usual)] == images
    helper.close()
    monkeypatch.setenv("LEZERO_COMPILE_EFFORT", "4")
    with pytest.raises(ValueError, match=r"LEZERO_COMPILE_EFFORT='4'.*how much LLVM optimises, from 0 to 3"):
        detect.detect()


def test_broken_code_is_refused_with_llvms_reason():
    with pytest.raises(CompileError, match="expected type"):
        compile_to_object("define void @kernel(", detect.detect())


def test_an_interrupt_of_llvm_leaves_nothing_to_crash_on():
    """The traceback is part of a cycle, whose objects the collector finalises in any order."""
    python(
        """
    import gc
    import llvmlite.binding as llvm
    target = detect.detect()
    compile_to_object(ADD, target)
    def interrupted(*_):
        raise KeyboardInterrupt
    for owner, name in ((llvm.ModuleRef, "verify"), (llvm.TargetMachine, "emit_object")):
        whole = getattr(owner, name)
        setattr(owner, name, interrupted)
        for _ in range(50):
            try:
                compile_to_object(ADD, target)
            except KeyboardInterrupt as error:
                error.itself = error
            gc.collect()
        setattr(owner, name, whole)
    assert compile_to_object(ADD, target)
    """
    )


def test_objects_can_be_made_for_other_processors():
    for target in TARGETS.values():
        assert compile_to_object(ADD, target)[:4] == b"\x7fELF"


# -- loading -----------------------------------------------------------------------------------------------------

TABLE_AND_COPY = """
@table = private unnamed_addr constant [4 x double] [double 1.0, double 2.0, double 3.0, double 4.0]
@names = private unnamed_addr constant [2 x ptr] [ptr @kernel, ptr @combine]
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
define void @kernel(ptr %b, ptr %p, i64 %task, i64 %tasks, ptr %s) {
  %n = load i64, ptr %p
  %to = load ptr, ptr %b
  %from.at = getelementptr ptr, ptr %b, i64 1
  %from = load ptr, ptr %from.at
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %n, i1 false)
  %entry = getelementptr double, ptr @table, i64 %task
  %value = load double, ptr %entry
  store double %value, ptr %to
  ret void
}
define void @combine(ptr %b, ptr %p, i64 %task, i64 %tasks, ptr %s) {
  %entry = getelementptr ptr, ptr @names, i64 %task
  %function = load ptr, ptr %entry
  %to = load ptr, ptr %b
  store ptr %function, ptr %to
  ret void
}
"""

KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


def check_table_and_copy(kernel: loader.LoadedKernel) -> None:
    to, given = np.zeros(8), np.arange(10.0, 18.0)
    buffers, params = addresses(to, given), np.array([64])
    KERNEL(kernel.address)(buffers.ctypes.data, params.ctypes.data, 2, 4, 0)
    np.testing.assert_array_equal(to, [3.0, *range(11, 18)])
    for task, address in enumerate((kernel.address, kernel.combine_address)):
        KERNEL(kernel.combine_address)(buffers.ctypes.data, params.ctypes.data, task, 2, 0)
        assert to.view(np.int64)[0] == address


def test_constants_address_tables_and_calls_out_of_the_block_are_linked():
    check_table_and_copy(loader.load(compile_to_object(TABLE_AND_COPY, detect.detect())))


def test_the_portable_loader_runs_the_same_object(monkeypatch):
    monkeypatch.setattr(loader, "_own_loader", lambda: False)
    check_table_and_copy(loader.load(compile_to_object(TABLE_AND_COPY, detect.detect())))


def test_a_function_nobody_provides_is_named():
    text = "declare void @launch_rockets()\ndefine void @kernel() {\n call void @launch_rockets()\n ret void\n}"
    with pytest.raises(loader.LoadError, match="'launch_rockets'"):
        loader.load(compile_to_object(text, detect.detect()))


def test_writable_data_is_refused():
    text = "@x = global i64 1\ndefine void @kernel() {\n store i64 2, ptr @x\n ret void\n}"
    with pytest.raises(loader.LoadError, match="writable data"):
        loader.load(compile_to_object(text, detect.detect()))


def test_aarch64_objects_link_to_the_right_addresses():
    image = compile_to_object(TABLE_AND_COPY, TARGETS["neon"])
    start = 0x7F12_3456_7000
    block, exported = loader.link(image, "aarch64", lambda nbytes: start)
    words = struct.unpack_from(f"<{len(block) // 4}I", block)
    code_end = (exported["combine"] - start) // 4 + 12
    seen = 0
    for i, word in enumerate(words[:code_end]):
        if word >> 24 & 0x9F == 0x90 and words[i + 1] >> 22 == 0x244:  # adrp x, page; add x, x, low bits
            pages = (word >> 3 & 0x1FFFFC) | (word >> 29 & 3)
            pages -= (pages & 1 << 20) << 1
            target = ((start + 4 * i) >> 12 << 12) + pages * 4096 + (words[i + 1] >> 10 & 0xFFF) - start
            seen += struct.unpack_from("<d", block, target)[0] == 1.0
            seen += struct.unpack_from("<Q", block, target)[0] == exported["kernel"]
        if word >> 26 == 0x25:  # bl: to the stub, which loads memcpy's address from beside it
            stub = i + (word & 0x3FFFFFF)
            assert words[stub : stub + 2] == (0x58000050, 0xD61F0200)
            assert struct.unpack_from("<Q", block, 4 * stub + 8)[0] == external("memcpy")
            seen += 1
    assert seen == 3


@linux
def test_ten_thousand_replacements_leave_memory_flat():
    images = [compile_to_object(text, detect.detect()) for text in (ADD, SUM, SLOW)]
    kept = [loader.load(images[i % 3]) for i in range(100)]
    used, resident = loader.executable_bytes(), resident_bytes()
    for i in range(10_000):
        kept[i % 100] = loader.load(images[i % 3])
    assert loader.executable_bytes() <= used
    assert resident_bytes() < resident * 1.05


# -- caching and compiling ---------------------------------------------------------------------------------------


def test_equal_keys_are_compiled_once_and_found_again(tmp_path):
    first = Compiler(DiskCache(tmp_path))
    a, b, c = first.get_kernels([source(ADD), source(SUM), source(ADD)], detect.detect())
    assert a is c and a is not b
    assert first.get_kernels([source(ADD)], detect.detect()) == [a]
    assert (first.compiled, first.misses, first.memory_hits) == (2, 2, 1)
    second = Compiler(DiskCache(tmp_path))
    second.get_kernels([source(ADD), source(SUM)], detect.detect())
    stats = second.stats()
    assert (stats.compiled, stats.disk_hits, stats.entries, stats.loaded) == (0, 2, 2, 2)
    assert second.clear() == 2 and second.stats().entries == 0


def test_the_target_is_part_of_the_name():
    names = {digest(source(ADD), target) for target in TARGETS.values()}
    assert len(names) == len(TARGETS)


@pytest.mark.parametrize("damage", [lambda b: b[:-7], lambda b: b"", lambda b: b[:100] + bytes([b[100] ^ 1]) + b[101:]])
def test_a_damaged_file_is_compiled_again(tmp_path, damage):
    Compiler(DiskCache(tmp_path)).get_kernels([source(TABLE_AND_COPY)], detect.detect())
    (path,) = tmp_path.glob("*.o")
    path.write_bytes(damage(path.read_bytes()))
    again = Compiler(DiskCache(tmp_path))
    check_table_and_copy(*again.get_kernels([source(TABLE_AND_COPY)], detect.detect()))
    assert (again.stats().damaged, again.compiled) == (1, 1)
    assert DiskCache(tmp_path).read(path.stem) is not None


def test_a_folder_that_cannot_be_written_costs_one_warning_that_says_what_to_do(tmp_path):
    (tmp_path / "file").write_text("in the way")
    compiler = Compiler(DiskCache(tmp_path / "file" / "kernels"))
    with pytest.warns(RuntimeWarning, match="LEZERO_CACHE_DIR") as caught:
        compiler.get_kernels([source(ADD), source(SUM)], detect.detect())
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiler.get_kernels([source(ADD), source(SUM), source(SLOW)], detect.detect())
    assert compiler.compiled == 3


def test_a_full_disk_leaves_no_half_written_file(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(RuntimeWarning, match="No space left"):
        Compiler(DiskCache(tmp_path)).get_kernels([source(ADD)], detect.detect())
    assert not list(tmp_path.iterdir())


def test_the_least_recently_used_files_go_when_the_folder_is_full(tmp_path):
    disk = DiskCache(tmp_path, limit=10_000)
    for i in range(20):
        disk.write(f"{i:064x}", bytes(900))
        os.utime(tmp_path / f"{i:064x}.o", (i, i))
        disk.read(f"{0:064x}")  # keep the first one young
    assert disk.size()[1] <= 10_000
    assert disk.read(f"{0:064x}") and disk.read(f"{19:064x}") and disk.read(f"{1:064x}") is None


def test_kernels_fall_out_of_memory_but_not_from_under_their_holder(tmp_path):
    compiler = Compiler(DiskCache(tmp_path), MemoryCache(limit=1))
    (held,) = compiler.get_kernels([source(TABLE_AND_COPY)], detect.detect())
    compiler.get_kernels([source(ADD)], detect.detect())
    assert compiler.stats().loaded == 1
    check_table_and_copy(held)


def test_the_cache_folder_and_limit_follow_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("LEZERO_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("LEZERO_CACHE_LIMIT", "12345")
    assert (cache_folder(), cache_limit()) == (tmp_path, 12345)
    monkeypatch.setenv("LEZERO_CACHE_LIMIT", "lots")
    with pytest.raises(ValueError, match=r"LEZERO_CACHE_LIMIT='lots'.*bytes"):
        cache_limit()


def many(count: int, salt: str) -> list[KernelSource]:
    return [source(f"{ADD}; {salt} {i}") for i in range(count)]


def test_helpers_compile_a_large_batch(tmp_path, monkeypatch):
    monkeypatch.setenv("LEZERO_COMPILE_WORKERS", "1")
    here = []
    original = compile_to_object

    def counted(text, target):
        here.append(text)
        time.sleep(0.05)  # the helper is started by now
        return original(text, target)

    monkeypatch.setattr(compiler_module.llvm, "compile_to_object", counted)
    compiler = Compiler(DiskCache(tmp_path))
    found = compiler.get_kernels(many(20, "helped"), detect.detect())
    assert compiler.compiled == 20 and len(here) < 20
    assert all(kernel.address for kernel in found)
    (helper,) = compiler._helpers
    helper._process.kill()
    helper._process.wait()
    assert len(compiler.get_kernels(many(8, "after a death"), detect.detect())) == 8
    compiler.close()
    assert not compiler._helpers


def test_helpers_compile_all_of_many_kernels_and_end(tmp_path, monkeypatch):
    """So that LLVM's memory is nowhere when the kernels run."""
    monkeypatch.delenv("LEZERO_COMPILE_WORKERS", raising=False)
    compiler = Compiler(DiskCache(tmp_path))
    found = compiler.get_kernels(many(30, "a network"), detect.detect())
    assert all(kernel.address for kernel in found)
    assert (compiler.compiled, compiler._own, compiler._helpers) == (30, 0, [])


def test_helpers_compile_what_needs_much_memory(tmp_path, monkeypatch):
    monkeypatch.delenv("LEZERO_COMPILE_WORKERS", raising=False)
    compiler = Compiler(DiskCache(tmp_path))
    for kernel in many(2, "parameters"):
        compiler.get_kernels([kernel], detect.detect(), 64 << 20)
    assert (compiler.compiled, compiler._own, len(compiler._helpers)) == (2, 0, 1)
    compiler.get_kernels(many(1, "little"), detect.detect())
    assert compiler._own == 1
    compiler.close()


def test_a_process_that_makes_large_parameters_does_not_load_llvm(tmp_path):
    code = "import lezero as lz; from lezero.backends.cpu import compiler\n"
    code += "lz.randn(5000, 4000).numpy(); print(compiler.default().compiled > 1, compiler.default()._own)"
    environment = {k: v for k, v in os.environ.items() if k != "LEZERO_COMPILE_WORKERS"}
    environment["LEZERO_CACHE_DIR"] = str(tmp_path)
    out = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["True", "0"]


@pytest.mark.parametrize("workers, count", [("2", 7), ("", 25)])
@pytest.mark.parametrize("executable", [None, "/bin/false", "/does/not/exist"])
def test_without_a_working_helper_kernels_are_compiled_here(tmp_path, monkeypatch, executable, workers, count):
    monkeypatch.setenv("LEZERO_COMPILE_WORKERS", workers)
    monkeypatch.setattr(sys, "executable", executable)
    compiler = Compiler(DiskCache(tmp_path))
    assert len(compiler.get_kernels(many(count, str(executable)), detect.detect())) == count
    compiler.close()


def test_a_broken_kernel_in_a_batch_raises_and_the_next_batch_works(tmp_path, monkeypatch):
    monkeypatch.setenv("LEZERO_COMPILE_WORKERS", "1")
    compiler = Compiler(DiskCache(tmp_path))
    with pytest.raises(CompileError):
        compiler.get_kernels([*many(6, "good"), source("define nonsense")], detect.detect())
    assert len(compiler.get_kernels(many(6, "good"), detect.detect())) == 6
    compiler.close()


def test_llvms_memory_grows_in_helpers_that_are_replaced(tmp_path, monkeypatch):
    monkeypatch.delenv("LEZERO_COMPILE_WORKERS", raising=False)
    monkeypatch.setattr(compiler_module, "_OWN_COMPILATIONS", 2)
    monkeypatch.setattr(compiler_module, "_HELPER_COMPILATIONS", 2)
    compiler = Compiler(DiskCache(tmp_path))
    helpers = set()
    for kernel in many(8, "one by one"):
        compiler.get_kernels([kernel], detect.detect())
        helpers |= {helper._process.pid for helper in compiler._helpers}
    assert (compiler.compiled, compiler._own, len(helpers)) == (8, 2, 3)
    compiler.close()


def test_two_threads_asking_for_one_kernel_compile_it_once(tmp_path):
    compiler = Compiler(DiskCache(tmp_path))
    found = []
    threads = [threading.Thread(target=lambda: found.extend(compiler.get_kernels([source(SLOW)], detect.detect())))
               for _ in range(4)]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert compiler.compiled == 1 and len(set(found)) == 1


# -- tables and threads ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tasks", [1, 2, 3, 7, 63, 64, 65, 500])
def test_every_task_runs_once_and_stages_follow_each_other(pool, kernels, tasks):
    x, y = np.zeros(1001), np.arange(1001.0)
    builder = TableBuilder()
    for _ in range(20):
        builder.add(kernels["add"], [([(0, 0), (1, 0)], [1001], tasks)])  # x += y
        builder.add(kernels["add"], [([(1, 0), (0, 0)], [1001], tasks)])  # y += x
    table = builder.build()
    pool.run(table, addresses(x, y))
    a, b = np.zeros(1001), np.arange(1001.0)
    for _ in range(20):
        a += b
        b += a
    np.testing.assert_array_equal(x, a)
    np.testing.assert_array_equal(y, b)


def test_a_combine_phase_sees_all_partial_results(pool, kernels):
    x, partial, result = np.random.default_rng(0).normal(size=10_000), np.full(8, np.nan), np.zeros(2)
    builder = TableBuilder()
    for slot in range(2):
        builder.add(
            kernels["sum"], [([(0, 0), (1, 0), (2, 8 * slot)], [10_000, 8], 8)], combine_tasks=1, scratch_bytes=8
        )
    table = builder.build()
    for _ in range(50):
        partial[:] = np.nan
        pool.run(table, addresses(x, partial, result))
        np.testing.assert_allclose(result, x.sum(), rtol=1e-12)


def test_one_record_runs_over_many_operand_sets(pool, kernels):
    sizes = [1, 0, 5, 300, 2, 64, 1000, 7]
    xs, ys = [np.zeros(n) for n in sizes], [np.arange(float(n)) for n in sizes]
    sets = [([(2 * i, 0), (2 * i + 1, 0)], [n], 1 + n // 50) for i, n in enumerate(sizes)]
    builder = TableBuilder()
    builder.add(kernels["add"], sets)
    table = builder.build()
    assert table.stages == 1
    for _ in range(3):
        pool.run(table, addresses(*[a for pair in zip(xs, ys) for a in pair]))
    for x, y in zip(xs, ys):
        np.testing.assert_array_equal(x, 3 * y)


def test_records_of_one_task_share_a_stage_and_keep_their_order(pool, kernels):
    x, y = np.ones(1), np.ones(1)
    builder = TableBuilder()
    for _ in range(10):
        builder.add(kernels["add"], [([(0, 0), (1, 0)], [1], 1)])
        builder.add(kernels["add"], [([(1, 0), (0, 0)], [1], 1)])
    table = builder.build()
    assert table.stages == 1
    pool.run(table, addresses(x, y))
    assert (x[0], y[0]) == (10946.0, 17711.0)  # Fibonacci


def test_records_that_need_no_barrier_share_a_parallel_stage(pool, kernels):
    x, y, z = np.zeros(100), np.arange(100.0), np.zeros(100)
    builder = TableBuilder()
    builder.add(kernels["add"], [([(0, 0), (1, 0)], [100], 3)])
    builder.add(kernels["add"], [([(2, 0), (1, 0)], [100], 3)], needs_barrier=False)
    builder.add(kernels["add"], [([(0, 0), (2, 0)], [100], 3)])
    table = builder.build()
    assert table.stages == 2
    pool.run(table, addresses(x, y, z))
    np.testing.assert_array_equal(x, 2 * y)


def test_a_profile_names_records_and_orders_them(pool, kernels):
    x = np.zeros(1, dtype=np.int64)
    builder = TableBuilder()
    for label, count in (("long", 200_000), ("short", 20_000)):
        builder.add(kernels["slow"], [([(0, 0)], [count], 4)], scratch_bytes=8, label=label)
    long, short = pool.profile(builder.build(), addresses(x))
    assert (long.label, short.label, x[0]) == ("long", "short", 8)
    assert long.start < long.end <= short.start < short.end
    assert long.busy > short.busy > 0


def test_an_empty_table_and_missing_bases(pool, kernels):
    pool.run(TableBuilder().build(), [])
    builder = TableBuilder()
    builder.add(kernels["add"], [([(0, 0), (1, 0)], [1], 1)])
    with pytest.raises(ValueError, match="needs 2 base addresses"):
        pool.run(builder.build(), [0])


def test_runs_from_several_threads_queue(pool, kernels):
    x, y = np.zeros(64), np.ones(64)
    builder = TableBuilder()
    for _ in range(10):
        builder.add(kernels["add"], [([(0, 0), (1, 0)], [64], 4)])
    table = builder.build()

    def work():
        for _ in range(100):
            pool.run(table, addresses(x, y))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(x, 4000.0)


def test_workers_that_fell_asleep_take_part_again(kernels):
    pool = ThreadPool(3)
    x, y = np.zeros(640), np.ones(640)
    builder = TableBuilder()
    builder.add(kernels["add"], [([(0, 0), (1, 0)], [640], 6)])
    table = builder.build()
    for pause in [0, 0.001, 0.02, 0, 0.005] * 10:
        pool.run(table, addresses(x, y))
        time.sleep(pause)
    np.testing.assert_array_equal(x, 50.0)
    pool.close()
    pool.run(table, addresses(x, y))  # and new ones are started after a close
    assert x[0] == 51.0
    pool.close()


def test_threads_wait_without_a_futex_too(kernels, monkeypatch):
    monkeypatch.setattr(walker, "_FUTEX_NUMBER", {})
    pool = ThreadPool(3)
    x, y = np.zeros(640), np.ones(640)
    builder = TableBuilder()
    for _ in range(10):
        builder.add(kernels["add"], [([(0, 0), (1, 0)], [640], 6)])
    table = builder.build()
    for _ in range(20):
        pool.run(table, addresses(x, y))
        time.sleep(0.001)
    np.testing.assert_array_equal(x, 200.0)
    pool.close()


@pytest.mark.parametrize("threads", ["0", "many", "-1"])
def test_a_wrong_number_of_threads_is_refused(monkeypatch, threads):
    from lezero.backends.cpu.pool import default_threads

    monkeypatch.setenv("LEZERO_NUM_THREADS", threads)
    with pytest.raises(ValueError, match="LEZERO_NUM_THREADS"):
        default_threads()


# -- in processes of their own -----------------------------------------------------------------------------------


def python(code: str, timeout: float = 60) -> str:
    """Run a script that starts with this module's names; what it printed."""
    script = f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom test_cpu_native import *\n"
    done = subprocess.run(
        [sys.executable, "-c", script + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


SLOW_TABLE = """
    import os, signal, sys, threading, time
    from lezero.backends.cpu.arena import empty
    pool = ThreadPool({threads})
    (slow,) = compiler_module.get_kernels([source(SLOW)], detect.detect())
    x = np.zeros(1, dtype=np.int64)
    def table(overwrites_at, stages=100):
        builder = TableBuilder()
        for i in range(stages):
            builder.add(slow, [([(0, 0)], [40_000_000], 4)], scratch_bytes=8, overwrites=i == overwrites_at)
        return builder.build()
    pool.run(table(None, 1), addresses(x))
    assert x[0] == 4
"""


@linux
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_ctrl_c_abandons_a_run_that_has_not_overwritten_anything(threads):
    python(
        SLOW_TABLE.format(threads=threads)
        + """
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    x[0] = 0
    start = time.monotonic()
    try:
        pool.run(table(99, 100), addresses(x))
        raise SystemExit("not interrupted")
    except KeyboardInterrupt:
        pass
    taken, seen = time.monotonic() - start, x[0]
    assert 0 < seen < 396 and taken < 1.5, (seen, taken)
    time.sleep(0.1)
    assert x[0] == seen  # nobody is still running
    x[0] = 0
    pool.run(table(None, 3), addresses(x))
    assert x[0] == 12
    """
    )


@linux
@pytest.mark.parametrize("threads", [1, 2])
def test_ctrl_c_after_the_first_overwrite_waits_for_the_end(threads):
    python(
        SLOW_TABLE.format(threads=threads)
        + """
    signal.setitimer(signal.ITIMER_REAL, 0.2, 0.1)  # impatient: again and again
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    x[0] = 0
    try:
        pool.run(table(0, 40), addresses(x))
        raise SystemExit("not interrupted")
    except KeyboardInterrupt:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert x[0] == 160, x[0]
    """
    )


@linux
def test_a_handler_that_returns_only_delays_a_run():
    python(
        SLOW_TABLE.format(threads=2)
        + """
    seen = []
    signal.signal(signal.SIGALRM, lambda *_: seen.append(x[0]))
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    x[0] = 0
    pool.run(table(None, 40), addresses(x))
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert x[0] == 160 and seen, (x[0], seen)
    """
    )


@linux
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_forked_child_and_its_parent_both_go_on(threads):
    python(
        SLOW_TABLE.format(threads=threads)
        + """
    block = empty((1000,), np.dtype(np.float64))
    block[:] = 1.0
    busy = threading.Thread(target=lambda: [pool.run(table(None, 2), addresses(x)) for _ in range(10)])
    busy.start()
    time.sleep(0.05)
    child = os.fork()
    if child == 0:
        mine = np.zeros(1, dtype=np.int64)
        pool.run(table(None, 3), addresses(mine))
        kernels = compiler_module.get_kernels([source(ADD)], detect.detect())
        block[:] = 2.0
        os._exit(0 if mine[0] == 12 and kernels[0].address else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    busy.join()
    x[0] = 0
    pool.run(table(None, 3), addresses(x))
    assert x[0] == 12 and (block == 1.0).all()
    """
    )


@linux
def test_the_interpreter_ends_while_workers_sleep_spin_and_work():
    for ending in ("", "sys.exit(0)", "time.sleep(0.1)",
                   "threading.Thread(target=lambda: pool.run(table(None), addresses(x)), daemon=True).start()\n"
                   "    time.sleep(0.1)"):  # fmt: skip
        python(SLOW_TABLE.format(threads=2) + f"\n    {ending}\n")


# -- memory ------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from Linux's /proc")
def test_a_large_block_takes_no_more_than_its_size():
    """Nor a huge page's worth beyond its end."""
    nbytes, blocks = 5 << 20, []
    allocator = Allocator()
    before = resident_bytes()
    for _ in range(16):
        blocks.append(allocator.alloc(nbytes)[1])
        blocks[-1].fill(1)
    assert resident_bytes() - before <= 16 * nbytes + (2 << 20)


@pytest.mark.parametrize("nbytes", [0, 1, 64, 65, 1000, 65_536, 65_537, 1 << 20, 5_000_001])
def test_blocks_are_aligned_writable_and_reused(nbytes):
    allocator = Allocator()
    address, block = allocator.alloc(nbytes)
    view = np.asarray(block)
    assert (address % 64 == 0 and view.nbytes == nbytes and view.ctypes.data == address) or nbytes == 0
    view[:] = 7
    del block
    gc.collect()
    assert allocator.stats().current > 0  # the view holds it
    del view
    assert allocator.stats().current == 0
    again, _block = allocator.alloc(nbytes)
    assert again == address and allocator.stats().mapped == 1


def test_a_block_goes_back_without_running_python():
    """An interrupt in a finaliser would be swallowed, and the block lost."""
    allocator, ran = Allocator(), []
    _, block = allocator.alloc(1000)
    view = np.asarray(block)
    before = sys.gettrace()
    sys.settrace(lambda frame, *_: ran.append(frame.f_code.co_name))
    try:
        del block
        del view
    finally:
        sys.settrace(before)
    assert not ran
    stats = allocator.stats()
    assert stats.current == 0 and stats.kept > 0


def test_size_classes_waste_at_most_an_eighth():
    for nbytes in [*range(1, 5000), *(3**k for k in range(8, 25))]:
        capacity = size_class(nbytes)
        assert capacity % 64 == 0 and nbytes <= capacity <= max(nbytes * 9 / 8, nbytes + 63)
        assert size_class(capacity) == capacity
        assert nbytes <= 4 << 20 or capacity <= nbytes * 33 / 32


def test_a_large_block_may_be_one_that_was_up_to_an_eighth_larger():
    allocator = Allocator()
    allocator.alloc(9 << 20)[1]
    address = allocator.alloc(8 << 20)[0]
    assert allocator.stats().mapped == 1 and allocator.stats().kept == 9 << 20
    assert allocator.alloc(7 << 20)[0] != address
    assert allocator.stats().mapped == 2


def test_small_blocks_do_not_overlap():
    allocator = Allocator()
    blocks = [allocator.alloc(200)[1] for _ in range(6000)]
    starts = np.sort([block.address for block in blocks])
    assert (np.diff(starts) >= 200).all()
    assert allocator.stats().mapped < 6000 * 256 // (1 << 20) + 2


def test_a_slab_is_cut_as_blocks_are_asked_for():
    """All at once, the first block of 64 bytes made 16,000 more and the 1.5 MB of objects that they are known by."""
    allocator = Allocator()
    before = sys.getallocatedblocks()
    block = allocator.alloc(64)[1]
    assert sys.getallocatedblocks() - before < 200
    assert allocator.stats().kept == (1 << 20) - 64
    del block
    gc.collect()
    assert allocator.stats().kept == 1 << 20


def test_what_is_kept_of_slabs_is_counted():
    allocator = Allocator()
    blocks = [allocator.alloc(10_000)[1] for _ in range(250)]  # a slab has 102 of 10,240 bytes
    stats = allocator.stats()
    assert stats.mapped == 3 and stats.kept == (3 * 102 - 250) * 10_240
    blocks.clear()
    gc.collect()
    assert allocator.stats().kept == 3 * 102 * 10_240


def test_the_peak_is_counted_and_can_be_reset():
    allocator = Allocator()
    _, a = allocator.alloc(1 << 20)
    _, b = allocator.alloc(1 << 20)
    del a
    assert (allocator.stats().current, allocator.stats().peak) == (1 << 20, 2 << 20)
    allocator.reset_peak()
    assert allocator.stats().peak == 1 << 20
    del b
    allocator.trim()
    assert (allocator.stats().current, allocator.stats().kept) == (0, 0)


def test_what_does_not_fit_says_how_many_bytes_were_wanted():
    with pytest.raises(MemoryError, match=str(1 << 60)):
        alloc(1 << 60)
    with contextlib.suppress(MemoryError):
        alloc(1 << 70)


@linux
def test_alternating_sizes_do_not_grow_memory():
    allocator = Allocator()
    for round in range(2000):
        held = [allocator.alloc((i + round % 50) * 10_000)[1] for i in range(1, 20)]
        held[-1].fill(1)
        if round == 200:
            mapped, resident = allocator.stats().mapped, resident_bytes()
    assert allocator.stats().mapped == mapped
    assert resident_bytes() < resident * 1.05


def test_an_arena_grows_and_is_poisoned_when_asked(monkeypatch):
    monkeypatch.setenv("LEZERO_POISON_ARENA", "1")
    arena = Arena(Allocator())
    for nbytes in (1000, 100, 300_000):
        address = arena.reserve(nbytes)
        floats = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (nbytes // 4,))
        assert np.isnan(floats).all()
        floats[:] = 0
    assert arena.nbytes == 300_000
    arena.release()
    assert arena.nbytes == 0
