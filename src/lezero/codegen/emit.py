"""From a kernel in the loop IR to LLVM IR with explicit vectors, for a given target.

LLVM is not asked to find vectors or to disambiguate memory: the lanes, the unrolling, the masked tails, what is
hoisted and what is shared are all decided here, so the same kernel gives the same code whatever surrounds it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from lezero.codegen import arithmetic, cost, reductions
from lezero.codegen.expressions import Scope, Slot, V
from lezero.codegen.launch import KernelSource
from lezero.codegen.memory import Memory
from lezero.codegen.target import Target
from lezero.codegen.values import Builder, Region, X
from lezero.loops import ir, printer
from lezero.loops.verify import verify

SIGNATURE = "(ptr noundef %buffers, ptr noundef %params, i64 noundef %task, i64 noundef %tasks, ptr noundef %scratch)"
TASK_BLOCK = 64  # iterations: task borders of a vector loop fall on multiples, so that no cache line is shared


def kernel_source(kernel: ir.Kernel) -> KernelSource:
    """The kernel as the scheduler and the compiler know it."""
    return KernelSource(
        kernel.name,
        printer.key(kernel),
        partial(emit, kernel),
        lambda params: sum(_scratch_bytes(s, params) for s in kernel.scratch),
    )


def _scratch_bytes(scratch: ir.Scratch, params: tuple[int, ...]) -> int:
    return -(-ir.evaluate(scratch.length, params) * ir.TYPES[scratch.type] // 64) * 64


def emit(kernel: ir.Kernel, target: Target) -> str:
    """LLVM IR text that defines ``kernel`` (and ``combine``) with the machine contract of :mod:`lezero.loops.ir`.

    The module refers to no external symbol; what arithmetic needs beyond instructions is defined inside.  Raises
    :class:`~lezero.loops.verify.LoopError` if the kernel breaks a rule of the loop IR.
    """
    verify(kernel)
    b = Builder(target)
    functions = [_function("kernel", kernel, kernel.body, b)]
    if kernel.combine is not None:
        functions.append(_function("combine", kernel, kernel.combine, b))
    return module(b, functions)


def module(b: Builder, functions: list[str]) -> str:
    """Functions of `b` with everything they refer to."""
    target = b.target
    width = target.vector_bytes * 8
    attributes = [
        "nounwind", f'"target-cpu"="{target.cpu}"', f'"target-features"="{target.features}"',
        f'"prefer-vector-width"="{width}"', f'"min-legal-vector-width"="{width}"',
    ]  # fmt: skip
    return "\n".join(
        (
            f'target triple = "{target.triple}"',
            *functions,
            *b.definitions.values(),
            *b.declarations.values(),
            f"attributes #0 = {{ {' '.join(attributes)} }}",
            f"attributes #1 = {{ alwaysinline {' '.join(attributes)} }}",
            '!0 = !{!"llvm.loop.unroll.disable"}',
            '!1 = !{!"llvm.loop.unroll.runtime.disable"}',
            '!2 = !{!"llvm.loop.vectorize.enable", i1 false}',
            *b.loops,
        )
    )


def _function(name: str, kernel: ir.Kernel, body: list[ir.Stmt], b: Builder) -> str:
    emitter = Emitter(b, kernel)
    emitter.function(body)
    lines = [*emitter.entry.lines, *emitter.scopes[0].body.lines]
    text = "\n".join(lines)
    return f"define dso_local void @{name}{SIGNATURE} #0 {{\nentry:\n{text}\nret void\n}}"


class Emitter(Memory):
    """Writes statements; see :class:`~lezero.codegen.expressions.Expressions` for the machinery of values."""

    partial: Any = None  # lanes and outer accumulators of the nest of loops being written, if it reduces

    def function(self, body: list[ir.Stmt]) -> None:
        b = self.b
        self.scopes[0].body.label = "entry"
        self.go(0)
        for k in range(len(self.kernel.buffers)):
            slot = b.ins(f"getelementptr ptr, ptr %buffers, i64 {k}", "ptr", 1)
            self.buffers.append(b.ins(f"load ptr, {slot.typed}, align 8", "ptr", 1))
        offset = b.const(0, "i64")
        for scratch in self.kernel.scratch:
            self.go(0)
            self.buffers.append(b.ins(f"getelementptr i8, ptr %scratch, {offset.typed}", "ptr", 1))
            length = self.evaluate(scratch.length).base
            self.go(0)
            offset = offset + ((length * ir.TYPES[scratch.type] + 63) & -64)
        self.statements(body)
        self.go(0)

    def statements(self, body: list[ir.Stmt]) -> None:
        for s in body:
            match s:
                case ir.Loop():
                    self.loop(s)
                case ir.Acc():
                    self.declare(s)
                case ir.Reduce():
                    self.reduce(s)
                case ir.Assign():
                    self.assign(s)
                case ir.Store():
                    self.store(s)

    # -- loops ----------------------------------------------------------------------------------------------

    def loop(self, loop: ir.Loop) -> None:
        effects = cost.effects(loop.body)
        self.forget(effects)
        # Lanes are folded once for a whole nest of loops: folding them for every short row takes longer than the row.
        vector = cost.innermost(loop) if self.partial is None else None
        if vector is not None:
            self._begin_partial(vector)
        if loop.unroll and not loop.vector and not loop.task and loop.extent.op == "const":
            self._unrolled(loop, effects)
        else:
            self._rolled(loop, effects)
        if vector is not None:
            self._end_partial(vector)
        self.forget(effects)

    def _rolled(self, loop: ir.Loop, effects: frozenset) -> None:
        start, end = self._range(loop)
        self.go(self.top)
        parent, stem = self.b.at, self.b.fresh("loop")
        runs = start < end
        always = loop.extent.op == "const" and loop.extent.attr > 0 and not loop.task
        scope = Scope(stem, effects, always)
        self.scopes.append(scope)
        write = self._vector if loop.vector else self._serial
        code = write(loop, scope, stem, start, end)
        self.scopes.pop()
        # Only now: until here, what the body's expressions could hoist was still being added to the parent.
        parent.lines.append(f"br i1 {runs.name}, label %{scope.pre.start}, label %{stem}.exit")
        parent.lines += code
        parent.lines.append(f"{stem}.exit:")
        parent.label = f"{stem}.exit"

    def _range(self, loop: ir.Loop) -> tuple[X, X]:
        """First and one past the last index; of this task's share for a task loop."""
        extent = self.evaluate(loop.extent)
        if not extent.uniform:
            raise ValueError(f"{self.kernel.name}: the extent of loop {loop.var} differs between lanes")
        self.go(self.top)
        b, end = self.b, extent.base
        if not loop.task:
            return b.const(0, "i64"), end
        task, tasks = X(b, "%task", "i64", 1), X(b, "%tasks", "i64", 1)
        if not loop.vector:
            return (end * task).op("sdiv", tasks), (end * (task + 1)).op("sdiv", tasks)
        blocks = (end + (TASK_BLOCK - 1)).op("sdiv", TASK_BLOCK)
        first = (blocks * task).op("sdiv", tasks) * TASK_BLOCK
        last = (blocks * (task + 1)).op("sdiv", tasks) * TASK_BLOCK
        return first, (last < end).where(last, end)

    def _unrolled(self, loop: ir.Loop, effects: frozenset) -> None:
        for i in range(loop.extent.attr):
            self.go(self.top)
            parent = self.b.at
            scope = Scope(parent.label, effects, nonempty=True)
            scope.body.label = parent.label
            self.scopes.append(scope)
            self.vars[loop.var] = V(self.top, self.b.const(i, "i64"), index=True)
            self.statements(loop.body)
            self.scopes.pop()
            parent.lines += scope.pre.lines + scope.body.lines
            parent.label = scope.body.label

    def _serial(self, loop: ir.Loop, scope: Scope, stem: str, start: X, end: X) -> list[str]:
        index = X(self.b, f"%{stem}.i", "i64", 1)
        self.vars[loop.var] = V(self.top, index, index=True)
        self.statements(loop.body)
        scope.pre.lines.append(f"br label %{scope.body.start}")
        return [
            f"{scope.pre.start}:",
            *scope.pre.lines,
            *self._counted(scope.body, index, scope.pre.label, start, end, 1, f"{stem}.exit", "!1"),
        ]

    def _counted(
        self, body: Region, index: X, entry: str, start: X, end: X, step: int, exit: str, unrolling: str
    ) -> list[str]:
        """The blocks of: index = start; do `body`; while (index += step) < end."""
        b = self.b
        metadata = len(b.loops) + 3
        b.loops.append(f"!{metadata} = distinct !{{!{metadata}, {unrolling}, !2}}")
        return [
            f"{body.start}:",
            f"{index.name} = phi i64 [ {start.name}, %{entry} ], [ {index.name}.next, %{body.label} ]",
            *body.lines,
            f"{index.name}.next = add nsw i64 {index.name}, {step}",
            f"{index.name}.more = icmp slt i64 {index.name}.next, {end.name}",
            f"br i1 {index.name}.more, label %{body.start}, label %{exit}, !llvm.loop !{metadata}",
        ]

    def _vector(self, loop: ir.Loop, scope: Scope, stem: str, start: X, end: X) -> list[str]:
        """An unmasked loop over whole groups of vectors, a masked one over what remains, then the folding of lanes."""
        if self.vector_level is not None:
            raise ValueError(f"{self.kernel.name}: vector loop {loop.var} inside a vector loop")
        b, plan = self.b, cost.plan(loop, self.b.target)
        self.vector_level, self.n, self.u = self.top, plan.lanes, plan.unroll
        self.go(self.top - 1)
        group = plan.lanes * plan.unroll
        middle = start if plan.single else start + ((end - start) & -group)

        code: list[str] = []
        if not plan.single:
            index = X(b, f"%{stem}.i", "i64", 1)
            self.vars[loop.var] = V(self.top, index, 1, index=True)
            self.statements(loop.body)
            code += self._counted(scope.body, index, scope.pre.start, start, middle, group, f"{stem}.rest", "!0")
            scope.body, scope.body_memo = Region(f"{stem}.tail"), {}

        index = X(b, f"%{stem}.j", "i64", 1)
        self.vars[loop.var] = V(self.top, index, 1, index=True)
        self.u = 1
        self.go(self.top)
        self.remaining = end - index
        self.mask = [self.tail_mask(self.remaining, plan.lanes)]
        self.statements(loop.body)
        rest = f"{stem}.rest"
        code += self._counted(scope.body, index, rest, middle, end, plan.lanes, f"{stem}.done", "!0")

        self.go(self.top - 1)
        if plan.single:
            b.line(f"br label %{rest}")
        else:
            b.line(f"br i1 {(start < middle).name}, label %{stem}.body, label %{rest}")
        b.at = Region(rest)
        b.line(f"br i1 {(middle < end).name}, label %{scope.body.start}, label %{stem}.done")
        rest_lines = b.at.lines
        self.vector_level, self.n, self.u, self.mask = None, 1, 1, None
        return [
            f"{scope.pre.start}:", *scope.pre.lines, *code, f"{rest}:", *rest_lines,
            f"{stem}.done:", f"br label %{stem}.exit",
        ]  # fmt: skip

    # -- accumulators ---------------------------------------------------------------------------------------

    def declare(self, acc: ir.Acc) -> None:
        init = self.evaluate(acc.init)
        lanes = self.vector_level is not None
        values = self.lanes(init) if lanes else [init.base]
        self.go(self.top)
        slots = [self.allocate(acc.type, self.n) for _ in values]
        self.accs[acc.name] = Slot(acc.type, self.top, slots, lanes)
        for slot, x in zip(slots, values):
            self.put(slot, x)
        self.forget(("@" + acc.name,))

    def assign(self, s: ir.Assign) -> None:
        slot, x = self.accs[s.acc], self.evaluate(s.value)
        if slot.partial or (self.vector_level is not None and not slot.lanes):
            raise ValueError(f"{self.kernel.name}: assignment to {s.acc}, declared outside the vector loop")
        values = self.lanes(x) if slot.lanes else [x.base]
        self.go(self.top)
        for place, value in zip(slot.slots, values):
            self.put(place, value)
        self.forget(("@" + s.acc,))

    def reduce(self, s: ir.Reduce) -> None:
        slot, x = self.accs[s.acc], self.evaluate(s.value)
        position = self.evaluate(s.index) if s.index is not None else None
        values = self.lanes(x) if slot.lanes else [x.base]
        positions = None
        if position is not None:
            positions = self.lanes(position) if slot.lanes else [position.base]
        self.go(self.top)
        n, type = self.n if slot.lanes else 1, slot.type
        for p, new in enumerate(values):
            place = slot.slots[p]
            old = self.get(place, type, n)
            if slot.partial and self.mask:
                nothing = arithmetic.constant(self.b, reductions.neutral(s.kind, type), type, n)
                new = arithmetic.where(self.mask[p], new, nothing)
            if positions is None:
                self.put(place, reductions.step(self.b, s.kind, type, new, old))
                continue
            index_place = self.accs[s.index_acc or ""].slots[p]
            best = old, self.get(index_place, "i64", n)
            value, index = reductions.step_with_index(self.b, s.kind, type, (new, positions[p]), best, True)
            self.put(place, value)
            self.put(index_place, index)
        self.forget(("@" + s.acc, f"@{s.index_acc}"))

    def _begin_partial(self, loop: ir.Loop) -> None:
        """Give every accumulator the vector loop reduces into one slot of lanes per part."""
        plan, outer = cost.plan(loop, self.b.target), {}
        self.go(self.top)
        for name, s in cost.reductions(loop.body).items():
            neutral = {name: reductions.neutral(s.kind, self.accs[name].type)}
            if s.index_acc:
                neutral[s.index_acc] = reductions.NO_INDEX
            for each, value in neutral.items():
                outer[each] = self.accs[each]
                type = outer[each].type
                slots = [self.allocate(type, plan.lanes) for _ in range(plan.unroll)]
                self.accs[each] = Slot(type, self.top, slots, lanes=True, partial=True)
                for slot in slots:
                    self.put(slot, arithmetic.constant(self.b, value, type, plan.lanes))
        self.partial = plan.lanes, outer

    def _end_partial(self, loop: ir.Loop) -> None:
        """Fold the lanes, and the result into the accumulator outside."""
        b, (lanes, outer) = self.b, self.partial
        self.partial = None
        self.go(self.top)
        for name, s in cost.reductions(loop.body).items():
            type = outer[name].type
            place = outer[name].slots[0]
            parts = [self.get(slot, type, lanes) for slot in self.accs[name].slots]
            if s.index_acc is None:
                total = reductions.fold(b, s.kind, type, parts)
                self.put(place, reductions.step(b, s.kind, type, total, self.get(place, type, 1)))
                continue
            index_place = outer[s.index_acc].slots[0]
            indices = [self.get(slot, "i64", lanes) for slot in self.accs[s.index_acc].slots]
            total = reductions.fold_with_index(b, s.kind, type, parts, indices)
            best = self.get(place, type, 1), self.get(index_place, "i64", 1)
            value, index = reductions.step_with_index(b, s.kind, type, total, best, True)
            self.put(place, value)
            self.put(index_place, index)
        self.accs.update(outer)
