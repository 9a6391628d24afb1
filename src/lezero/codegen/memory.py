"""Loads and stores: contiguous, reversed, strided, gathered, and never where a mask is false."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

from lezero.codegen import arithmetic
from lezero.codegen.complex_numbers import REAL, Pair
from lezero.codegen.expressions import Expressions, V
from lezero.codegen.values import BITS, X, suffix, vector
from lezero.loops import ir


class Memory(Expressions):
    """Adds memory access to the evaluation of expressions."""

    # -- loads ----------------------------------------------------------------------------------------------

    def load(self, value: ir.Value, args: list[V]) -> V:
        buffer, type = value.attr, value.type
        index, mask = args[0], args[1] if len(args) > 1 else None
        reads = frozenset((buffer,)).union(*(a.reads for a in args))
        level = self.hoist(max(self.changes_at(buffer), *(a.level for a in args)))
        if index.uniform and (mask is None or mask.uniform):
            self.go(level)
            return V(level, self._load_scalar(buffer, type, index.base, mask.base if mask else None), reads=reads)
        if index.uniform:
            masks = self.active(mask)
            self.go(level)
            some = masks[0]
            for m in masks[1:]:
                some = some | m
            x = self.splat(self._load_scalar(buffer, type, index.base, self._any(some)))
            zero = arithmetic.constant(self.b, 0, type, self.n)
            return V(level, parts=[arithmetic.where(m, x, zero) for m in masks], reads=reads)
        masks = self.active(mask)
        self.go(level)
        if type not in REAL:
            return V(level, parts=self._load_lanes(buffer, type, index, masks), reads=reads)
        re, im = (self._load_lanes(buffer, REAL[type], self._component(index, k), masks) for k in (0, 1))
        return V(level, parts=[Pair(*pair) for pair in zip(re, im)], reads=reads)

    def active(self, mask: V | None) -> list[Any]:
        """Per part, the lanes that may touch memory (None: all of them)."""
        if mask is None:
            return list(self.mask) if self.mask else [None] * self.u
        lanes = self.lanes(mask)
        if not self.mask:
            return lanes
        self.go(max(mask.level, self.vector_level or 0))
        return [m & x for m, x in zip(self.mask, lanes)]

    def _any(self, mask: X) -> X:
        return self.b.call(f"llvm.vector.reduce.or.{suffix('i1', mask.n)}", "i1", 1, [mask])

    def _component(self, index: V, k: int) -> V:
        """The index of the real (0) or imaginary (1) part of a complex element, in reals."""
        if index.parts is not None:
            return V(index.level, parts=[x * 2 + k for x in index.parts])
        stride = index.stride * 2 if index.stride is not None else None
        return V(index.level, index.base * 2 + k, stride)

    def _pointer(self, buffer: int, type: str, index: X) -> X:
        return self.b.ins(
            f"getelementptr {memory_type(type)}, {self.buffers[buffer].typed}, {index.typed}", "ptr", index.n
        )

    def _spare(self) -> X:
        """Memory of our own that a masked-off scalar access is sent to, instead of branching around it."""
        if not hasattr(self, "_spare_slot"):
            self._spare_slot = X(self.b, "%spare", "ptr", 1)
            self.entry.lines.append("%spare = alloca i64")
        return self._spare_slot

    def _load_scalar(self, buffer: int, type: str, index: X, mask: X | None) -> Any:
        if type in REAL:
            parts = (self._load_scalar(buffer, REAL[type], index * 2 + k, mask) for k in (0, 1))
            return Pair(*parts)
        pointer = self._pointer(buffer, type, index)
        if mask is not None:
            pointer = mask.where(pointer, self._spare())
        kind = memory_type(type)
        x = self.b.ins(f"load {kind}, {pointer.typed}, align {BITS[kind] // 8}", kind, 1)
        x = x.ne(0) if type == "bool" else x
        return x if mask is None else mask.where(x, 0)

    def _load_lanes(self, buffer: int, type: str, index: V, masks: list[X | None]) -> list[X]:
        loaded = [self._access(buffer, type, index, p, masks[p]) for p in range(self.u)]
        return [x.ne(0) if type == "bool" else x for x in loaded]

    def _access(self, buffer: int, type: str, index: V, p: int, mask: X | None, value: X | None = None) -> X:
        """Load part `p`, or store `value` there."""
        b, n, kind = self.b, self.n, memory_type(type)
        size = BITS[kind] // 8
        if index.repeat is not None and value is None:
            return self._repeated_lanes(buffer, type, index.repeat, p, mask)
        if index.parts is not None:
            return self._scattered(self._pointer(buffer, type, index.parts[p]), kind, mask, value)
        pointer = self._pointer(buffer, type, index.base)
        if index.stride == 2 and value is None and (mask is None or self.is_tail(mask, p)):
            return self._every_other(pointer, kind, p, mask)
        if index.stride not in (1, -1):
            return self._scattered(self._strided(pointer, index, kind, p), kind, mask, value)
        shift = p * n if index.stride == 1 else -(p * n + n - 1)
        if shift:
            pointer = b.ins(f"getelementptr i8, {pointer.typed}, i64 {shift * size}", "ptr", 1)
        backwards = range(n - 1, -1, -1)
        if index.stride == -1:
            mask = b.shuffle(mask, None, backwards) if mask is not None else None
            value = b.shuffle(value, None, backwards) if value is not None else None
        if value is not None:
            if mask is None:
                b.line(f"store {value.typed}, {pointer.typed}, align {size}")
            else:
                name = f"llvm.masked.store.{suffix(kind, n)}.p0"
                b.declarations[name] = f"declare void @{name}({value.spelled}, ptr, {mask.spelled})"
                b.line(f"call void @{name}({value.typed}, ptr align {size} {pointer.name}, {mask.typed})")
            return value
        x = self._contiguous(pointer, kind, n, mask)
        return b.shuffle(x, None, backwards) if index.stride == -1 else x

    def _contiguous(self, pointer: X, kind: str, n: int, mask: X | None) -> X:
        """`n` elements from `pointer` on; zeros where the mask is false."""
        b, spelled, size = self.b, vector(kind, n), BITS[kind] // 8
        if mask is None:
            return b.ins(f"load {spelled}, {pointer.typed}, align {size}", kind, n)
        name = f"llvm.masked.load.{suffix(kind, n)}.p0"
        b.declarations[name] = f"declare {spelled} @{name}(ptr, {mask.spelled}, {spelled})"
        text = f"call {spelled} @{name}(ptr align {size} {pointer.name}, {mask.typed}, {spelled} zeroinitializer)"
        return b.ins(text, kind, n)

    def tail_mask(self, remaining: X, n: int, step: int = 1) -> X:
        """Which of `n` lanes exist, each of `step` iterations, when `remaining` are left.

        Small integers compare many lanes at once.  Other masks are not made of this one: moving lanes of masks is slow.
        """
        kind = {32: "i16", 64: "i8"}.get(n, "i32")
        count = (remaining < n * step).where(remaining, n * step).convert("trunc", kind)
        return self.b.iota(kind, n, 0, step) < self.b.splat(count, n)

    def is_tail(self, mask: X, p: int) -> bool:
        """Whether a mask only says which iterations are left."""
        return self.mask is not None and mask is self.mask[p]

    def _repeated_lanes(self, buffer: int, type: str, repeat: tuple[X, int], p: int, mask: X | None) -> X:
        """Each of fewer elements in several lanes: a shorter contiguous load, and a shuffle."""
        b, n, kind = self.b, self.n, memory_type(type)
        first, count = repeat
        few = n // count
        size = BITS[kind] // 8
        pointer = self._pointer(buffer, type, first)
        if p:
            pointer = b.ins(f"getelementptr i8, {pointer.typed}, i64 {p * few * size}", "ptr", 1)
        tail = mask is not None and self.is_tail(mask, p)
        wanted = self.tail_mask(self.remaining, few, count) if tail else None
        if mask is not None and not tail:  # an element is loaded if any of its lanes wants it
            wanted = reduce(or_, (b.shuffle(mask, None, range(k, n, count)) for k in range(count)))
        x = b.shuffle(self._contiguous(pointer, kind, few, wanted), None, [k // count for k in range(n)])
        return x if mask is None or tail else mask.where(x, 0)

    def _every_other(self, pointer: X, kind: str, p: int, mask: X | None) -> X:
        """Elements two apart: two whole vectors, of which the second ends at the last element wanted, and a shuffle.

        In the tail (`mask`) both stop at the last element that exists.
        """
        b, n, size = self.b, self.n, BITS[kind] // 8
        halves = []
        for first in (0, n - 1):
            at = b.ins(f"getelementptr i8, {pointer.typed}, i64 {(2 * p * n + first) * size}", "ptr", 1)
            wanted = self.tail_mask(self.remaining * 2 - (first + 1), n) if mask is not None else None
            halves.append(self._contiguous(at, kind, n, wanted))
        lanes = [2 * k if 2 * k < n else n + 2 * k - (n - 1) for k in range(n)]
        return b.shuffle(halves[0], halves[1], lanes)

    def _strided(self, pointer: X, index: V, kind: str, p: int) -> X:
        """Pointers to `stride` apart elements; a small constant stride has 32-bit lane offsets."""
        b, n, stride = self.b, self.n, index.stride
        if isinstance(stride, int) and abs(stride) * n * self.u < 1 << 24:
            offsets = b.iota("i32", n, p * n * stride, stride)
        elif isinstance(stride, int):
            offsets = b.iota("i64", n, p * n * stride, stride)
        else:
            offsets = b.splat(stride, n) * b.iota("i64", n, p * n)
        return b.ins(f"getelementptr {kind}, {pointer.typed}, {offsets.typed}", "ptr", n)

    def _scattered(self, pointers: X, kind: str, mask: X | None, value: X | None) -> X:
        b, n = self.b, self.n
        if mask is None:
            mask = X(b, "splat (i1 true)", "i1", n)
        spelled, size = vector(kind, n), BITS[kind] // 8
        name = f"llvm.masked.{'gather' if value is None else 'scatter'}.{suffix(kind, n)}.v{n}p0"
        if value is None:
            b.declarations[name] = f"declare {spelled} @{name}(<{n} x ptr>, {mask.spelled}, {spelled})"
            pointer = f"<{n} x ptr> align {size} {pointers.name}"
            return b.ins(f"call {spelled} @{name}({pointer}, {mask.typed}, {spelled} zeroinitializer)", kind, n)
        b.declarations[name] = f"declare void @{name}({spelled}, <{n} x ptr>, {mask.spelled})"
        b.line(f"call void @{name}({value.typed}, <{n} x ptr> align {size} {pointers.name}, {mask.typed})")
        return value

    # -- stores ---------------------------------------------------------------------------------------------

    def store(self, statement: ir.Store) -> None:
        buffer = statement.buffer
        type = self.types[buffer]
        value = statement.value
        if statement.add:
            old = ir.load(buffer, type, statement.index, statement.mask)
            # bf16 and f16 are storage: their sums are made in f32.
            half = type in ("f16", "bf16")
            value = ir.call("add", ir.cast(old, "f32"), ir.cast(value, "f32")) if half else ir.call("add", old, value)
            value = ir.cast(value, type)
        index, x = self.evaluate(statement.index), self.evaluate(value)
        mask = self.evaluate(statement.mask) if statement.mask is not None else None
        if index.uniform and (not x.uniform or (mask is not None and not mask.uniform)):
            raise ValueError(f"{self.kernel.name}: lanes of a vector loop store to one element of buffer {buffer}")
        if index.uniform:
            self.go(self.top)
            self._store_scalar(buffer, type, index.base, x.base, mask.base if mask else None)
        else:
            masks, values = self.active(mask), self.lanes(x)
            self.go(self.top)
            if type in REAL:
                for k in (0, 1):
                    component = self._component(index, k)
                    self._store_lanes(buffer, REAL[type], component, [v.im if k else v.re for v in values], masks)
            else:
                self._store_lanes(buffer, type, index, values, masks)
        self.forget((buffer,))

    def _store_lanes(self, buffer: int, type: str, index: V, values: list[X], masks: list[X | None]) -> None:
        for p, x in enumerate(values):
            self._access(buffer, type, index, p, masks[p], x.convert("zext", "i8") if type == "bool" else x)

    def _store_scalar(self, buffer: int, type: str, index: X, x: X | Pair, mask: X | None) -> None:
        if isinstance(x, Pair):
            for k, part in enumerate((x.re, x.im)):
                self._store_scalar(buffer, REAL[type], index * 2 + k, part, mask)
            return
        pointer = self._pointer(buffer, type, index)
        if mask is not None:
            pointer = mask.where(pointer, self._spare())
        if type == "bool":
            x = x.convert("zext", "i8")
        self.b.line(f"store {x.typed}, {pointer.typed}, align {BITS[x.type] // 8}")


def memory_type(type: str) -> str:
    """The LLVM type of an element in memory (of one component, for complex types)."""
    return "i8" if type == "bool" else arithmetic.LLVM_TYPE[REAL.get(type, type)]
