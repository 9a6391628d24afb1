"""Products of a matrix with one vector: bound by memory, so the matrix is read once, in order, and never copied.

The matrix M is whichever operand is not the vector; y[i] = sum over k of M[i, k] * v[k].  Where M's rows are contiguous,
y's elements are dot products.  Where its columns are, rows of M are added up, scaled, into y in scratch.
"""

from __future__ import annotations

from functools import lru_cache

from lezero.codegen.contraction.epilogue import Emitter, Place
from lezero.codegen.contraction.pack import load_as
from lezero.codegen.contraction.spec import COMPUTE, PRODUCTS_PER_THREAD, MatmulSpec, tasks_for_elements, useful_threads
from lezero.codegen.contraction.text import MEMORY, Code, Module, Operand, words
from lezero.codegen.launch import KernelSource, Launch
from lezero.codegen.target import Target
from lezero.loops.ir import TYPES

LEAST_PRODUCTS = 1 << 16
"""Below this a product is not worth a kernel of its own."""

PARAMS = words("batch m n k lda ldb ldc sa sb sc")


def launch(spec: MatmulSpec, params: tuple[int, ...], threads: int) -> Launch:
    """The launch for a product with m == 1 or n == 1; `params` are PARAMS and the epilogue's."""
    batch, m, n, k = params[:4]
    threads = useful_threads(threads, batch * m * n * k, PRODUCTS_PER_THREAD)
    tasks = tasks_for_elements(batch * -(-max(m, n) // 64), batch * m * n * k, threads)
    return Launch(source(spec, m == 1), ("a", "b", *spec.tail.names), params, tasks)


@lru_cache(maxsize=64)
def source(spec: MatmulSpec, left: bool) -> KernelSource:
    """`left`: the vector is A."""
    key = f"gemv {' '.join(x for (x,) in spec.sources)} {spec.trans_a:d}{spec.trans_b:d} {left:d} {spec.tail.key()}"

    def scratch(p: tuple[int, ...]) -> int:
        return (p[1] + p[2] + p[3] + 256) * 8

    return KernelSource("gemv", key, lambda target: emit(spec, left, target), scratch=scratch)


def emit(spec: MatmulSpec, left: bool, target: Target) -> str:
    module = Module(target)
    c = Code(module)
    p = {name: c.param(i) for i, name in enumerate(PARAMS)}
    (other,), (stored,) = spec.sources if left else spec.sources[::-1]
    other_memory, memory, to = MEMORY[other], MEMORY[stored], MEMORY[COMPUTE[spec.dtype]]
    lanes = target.lanes(TYPES[COMPUTE[spec.dtype]])
    register = f"<{lanes} x {to}>"
    epilogue = Emitter(c, spec.tail, lanes, first_buffer=2, first_param=len(PARAMS))
    a, b = c.buffer(0), c.buffer(1)
    length = p["n"] if left else p["m"]
    if left:
        stride, matrix_step, vector_step = p["ldb"], p["sb"], p["sa"]
        contiguous, element = spec.trans_b, p["lda"] if spec.trans_a else 1
    else:
        stride, matrix_step, vector_step = p["lda"], p["sa"], p["sb"]
        contiguous, element = not spec.trans_a, 1 if spec.trans_b else p["ldb"]
    vector = "%scratch"
    y = c.gep(vector, c.round_up(c.add(p["k"], lanes), lanes), to)

    def multiply(batch: Operand, begin: Operand, end: Operand) -> None:
        """y[0 : end - begin], and the epilogue over it."""
        matrix = c.gep(b if left else a, c.mul(batch, matrix_step), memory)
        from_vector = c.gep(a if left else b, c.mul(batch, vector_step), other_memory)

        def widen(i: str) -> None:
            value = load_as(c, other, to, 1, c.gep(from_vector, c.mul(i, element), other_memory))
            c.store(to, value, c.gep(vector, i, to))

        c.loop(0, p["k"], widen)
        count = c.sub(end, begin)
        if contiguous:
            dots(c.gep(matrix, c.mul(begin, stride), memory), count)
        else:
            axpys(c.gep(matrix, begin, memory), count)
        start = c.mul(batch, p["sc"])
        if left:

            def columns(j: Operand, mask: str | None) -> None:
                col = c.add(begin, j)
                total = c.vector_load(to, lanes, c.gep(y, j, to))
                epilogue.run(total, to, Place(0, col, batch, c.add(start, col), mask))

            c.over_vectors(count, lanes, columns)
        else:

            def row(j: str) -> None:
                here = c.add(begin, j)
                total = c.splat(c.load(to, c.gep(y, j, to)), to, lanes)
                index = c.add(start, c.mul(here, p["ldc"]))
                # n is 1, which LLVM must not know: of a rounded element that it knows to be alone it stores four bytes.
                epilogue.run(total, to, Place(here, 0, batch, index, c.mask(p["n"], lanes)))

            c.loop(0, count, row)

    def dots(matrix: str, count: Operand) -> None:
        """Four rows at a time; rows past the last repeat it (y has room)."""
        at_once = 4
        reduce = f"llvm.vector.reduce.fadd.v{lanes}{'f32' if to == 'float' else 'f64'}"
        c.declare(to, reduce, to, register)

        def rows(i: str) -> None:
            lines = [c.gep(matrix, c.mul(c.min(c.add(i, r), c.sub(count, 1)), stride), memory) for r in range(at_once)]

            def step(j: Operand, sums: tuple[str, ...], mask: str | None) -> list[str]:
                v = c.vector_load(to, lanes, c.gep(vector, j, to), mask)
                loaded = [load_as(c, stored, to, lanes, c.gep(line, j, memory), mask) for line in lines]
                return [c.fma(to, lanes, x, v, total) for x, total in zip(loaded, sums, strict=True)]

            whole = c.mul(c.div(p["k"], lanes), lanes)
            zeros = [(register, "zeroinitializer")] * at_once
            sums = c.loop(0, whole, lambda j, *sums: step(j, sums, None), step=lanes, carried=zeros)
            mask = c.mask(c.sub(p["k"], whole), lanes)
            sums = step(whole, tuple(sums), mask)
            for r, total in enumerate(sums):
                dot = c.value(f"call reassoc {to} @{reduce}({to} -0.0, {register} {total})")
                c.store(to, dot, c.gep(y, c.add(i, r), to))

        c.loop(0, count, rows, step=at_once)

    def axpys(matrix: str, count: Operand) -> None:
        """Eight rows at a time, each read from end to end."""

        def clear(i: str) -> None:
            c.store(register, "zeroinitializer", c.gep(y, i, to), align=TYPES[COMPUTE[spec.dtype]])

        c.loop(0, count, clear, step=lanes)

        def rows(at_once: int, k: str) -> None:
            lines = [c.gep(matrix, c.mul(c.add(k, r), stride), memory) for r in range(at_once)]
            factors = [c.splat(c.load(to, c.gep(vector, c.add(k, r), to)), to, lanes) for r in range(at_once)]

            def step(j: Operand, mask: str | None) -> None:
                here = c.gep(y, j, to)
                total = c.vector_load(to, lanes, here)
                for line, factor in zip(lines, factors, strict=True):
                    total = c.fma(to, lanes, load_as(c, stored, to, lanes, c.gep(line, j, memory), mask), factor, total)
                c.vector_store(to, lanes, total, here)

            c.over_vectors(count, lanes, step)

        whole = c.mul(c.div(p["k"], 8), 8)
        c.loop(0, whole, lambda k: rows(8, k), step=8)
        c.loop(whole, p["k"], lambda k: rows(1, k))

    # Tasks divide y, in whole cache lines, or else the batch.
    def border(task: Operand) -> Operand:
        return c.div(c.mul(task, c.mul(p["batch"], blocks)), "%tasks")

    blocks = c.ceil_div(length, 64)
    first, last = border("%task"), border(c.add("%task", 1))

    def stretch(at: str) -> None:
        """From block `at` to the end of its matrix or of the task."""
        batch = c.div(at, blocks)
        begin = c.mul(c.rem(at, blocks), 64)
        to_block = c.min(last, c.mul(c.add(batch, 1), blocks))
        end = c.min(length, c.mul(c.sub(to_block, c.mul(batch, blocks)), 64))
        starts_here = c.value(f"icmp eq i64 {at}, {c.max(first, c.mul(batch, blocks))}")
        c.when(starts_here, lambda: multiply(batch, begin, end))

    c.loop(first, last, stretch)
    c.finish()
    return module.text()
