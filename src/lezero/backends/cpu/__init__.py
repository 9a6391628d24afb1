"""The CPU backend: graphs restructured, scheduled, and run as machine code generated here."""

from __future__ import annotations

import gc
import os
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np

from lezero.backends.cpu import arena, compiler, detect
from lezero.backends.cpu.limited import LimitedProgram
from lezero.backends.cpu.pool import default_pool, get_num_threads, walker_source
from lezero.backends.cpu.table import RecordTimes, Table, TableBuilder
from lezero.graph.dtype import DType
from lezero.graph.node import Graph, Node
from lezero.hal import precision
from lezero.hal.backend import Backend, Program, Properties
from lezero.hal.buffer import Buffer, Part
from lezero.hal.references import others
from lezero.passes.pipeline import restructure, switched_off
from lezero.schedule.budget import Limit
from lezero.schedule.layout import row_major, same_memory
from lezero.schedule.recompute import Effort
from lezero.schedule.schedule import Instance, Schedule, build

observer: Callable[[Schedule, Instance, list[RecordTimes]], None] | None = None
"""Told after each run when its records ran (``lezero.profiler``)."""

MAX_TABLES = 64
"""Tables kept for each program; the least recently used goes first."""
SMALL_OUTPUT = 64 << 10
"""Results up to this many bytes keep their memory for the next run of the same table, if nobody holds them by then."""
MAX_SPARE = 2
"""Such memory kept for an output: a value that is read by the run that replaces it needs two places in turn."""


class CpuProgram(Program):
    """A schedule and its tables, one for each set of extents it was run with.

    The bases a table's records refer to are: the arena, the inputs, the outputs, in this order.
    """

    def __init__(self, schedule: Schedule, leaves: tuple[Node, ...], backend: CpuBackend):
        self.schedule, self.leaves, self.backend = schedule, leaves, backend
        self.tables: OrderedDict[tuple, tuple[Table, Instance, list[Any]]] = OrderedDict()
        graph = schedule.graph
        self.position = {leaf: k for k, leaf in enumerate(leaves)}
        self.reused = [self.position[schedule.reused[n]] if n in schedule.reused else -1 for n in graph.outputs]
        self.parts = [k for k, leaf in enumerate(leaves) if leaf in schedule.parts]
        self.layouts = [(n.dtype.numpy, _unless_row_major(n, schedule.orders[n])) for n in graph.outputs]

    def run(
        self,
        inputs: Sequence[Buffer],
        bindings: Sequence[int],
        donated: Sequence[int] = (),
        into: Mapping[int, Buffer] | None = None,
    ) -> list[Buffer]:
        places = _places([inputs[k] for k in self.parts])
        key = (*bindings, *places)
        found = self.tables.get(key)
        if found is None:
            with _no_collection():
                found = self._table(key, bindings, places)
        else:
            self.tables.move_to_end(key)
        table, instance, spare = found
        outputs: list[Buffer] = []
        block = arena.alloc(instance.together_bytes) if instance.together else None
        for k, reused in enumerate(self.reused):
            if reused >= 0 or (into is not None and k in into):
                output = inputs[reused] if reused >= 0 else into[k]  # type: ignore[index]
                output.version += 1
                outputs.append(output)
                continue
            at = instance.together.get(self.schedule.graph.outputs[k])
            if at is not None and block is not None:
                outputs.append(_part(instance.output_shapes[k], *self.layouts[k], *block, at))
                continue
            if instance.settled and (place := instance.settled.get(self.schedule.graph.outputs[k])):
                part = inputs[self.position[place[0]]]
                outputs.append(_settled(instance.output_shapes[k], *self.layouts[k], part, place[1]))
                continue
            outputs.append(self._output(k, instance.output_shapes[k], spare[k]))
        bases = array("q", [self.backend.reserve(instance.arena_bytes)])
        bases.extend([b.address for b in inputs])
        bases.extend([b.address for b in outputs])
        try:
            if observer is None:
                default_pool().run(table, bases)
            else:
                observer(self.schedule, instance, default_pool().profile(table, bases))
        except BaseException as error:
            if getattr(error, "completed", False):
                error.results = outputs  # type: ignore[attr-defined]
            raise
        return outputs

    def _output(self, k: int, shape: tuple[int, ...], spare: list[tuple[np.ndarray, int]]) -> Buffer:
        """Memory for output `k`: what an earlier run used, if nobody holds it by now."""
        for i in range(len(spare)):
            if not others(spare[i], 0):
                return Buffer(spare[i][0], "cpu", self.layouts[k][1], spare[i][1])
        made = _empty(shape, *self.layouts[k])
        if made.nbytes <= SMALL_OUTPUT:
            del spare[: len(spare) - MAX_SPARE + 1]
            spare.append((made.array, made.address))
        return made

    def _table(
        self, key: tuple, bindings: Sequence[int], places: list[tuple[int, int]]
    ) -> tuple[Table, Instance, list[Any]]:
        instance = self.schedule.instantiate(bindings, {self.leaves[k]: p for k, p in zip(self.parts, places)})
        results = sum(prod(s) * t.itemsize for s, (t, _) in zip(instance.output_shapes, self.layouts))
        # The first run needs the walker as well: alone it would be compiled in this process.
        sources = [*(r.source for r in instance.records), walker_source()]
        kernels = compiler.get_kernels(sources, self.schedule.target, instance.arena_bytes + results)
        base: dict[Any, int] = {"arena": 0}
        base |= {leaf: 1 + k for k, leaf in enumerate(self.leaves)}
        base |= {n: 1 + len(self.leaves) + k for k, n in enumerate(self.schedule.graph.outputs)}
        builder = TableBuilder()
        for r, kernel in zip(instance.records, kernels[:-1], strict=True):
            sets = [([(base[n], o) for n, o in operands], list(params), tasks) for operands, params, tasks in r.sets]
            builder.add(kernel, sets, r.combine_tasks, r.scratch_bytes, r.overwrites, r.label, not r.beside)
        made = self.tables[key] = (builder.build(), instance, [[] for _ in instance.output_shapes])
        if len(self.tables) > MAX_TABLES:
            self.tables.popitem(last=False)
        return made


def _places(buffers: Sequence[Buffer]) -> list[tuple[int, int]]:
    """For each part of a block which one that is, and its offset; what is none is a block of its own."""
    blocks: dict[int, int] = {}
    return [
        (blocks.setdefault(id(b.block), len(blocks)), b.offset)
        if type(b) is Part
        else (blocks.setdefault(id(b), len(blocks)), 0)
        for b in buffers
    ]


def _unless_row_major(node: Node, order: tuple[int, ...]) -> tuple[int, ...] | None:
    return None if same_memory(node.shape, order, row_major(node.ndim)) else order


def _empty(shape: tuple[int, ...], dtype: np.dtype, order: tuple[int, ...] | None) -> Buffer:
    """Memory for a value whose axes lie in `order`, as an array of its logical shape."""
    address, block = arena.alloc(prod(shape) * dtype.itemsize)
    return Buffer(_shaped(np.asarray(block), shape, dtype, order), "cpu", order, address)


def _part(
    shape: tuple[int, ...], dtype: np.dtype, order: tuple[int, ...] | None, address: int, block: arena.Block, at: int
) -> Part:
    """The same, within a block of memory."""
    memory = np.asarray(block)[at : at + prod(shape) * dtype.itemsize]
    return Part(_shaped(memory, shape, dtype, order), order, address + at, block, at)


class _Held:
    """Memory at an address, as NumPy takes it, and whose it is."""

    def __init__(self, address: int, nbytes: int, owner: object):
        self.owner = owner
        self.__array_interface__ = {"version": 3, "data": (address, False), "shape": (nbytes,), "typestr": "|u1"}


def _settled(
    shape: tuple[int, ...], dtype: np.dtype, order: tuple[int, ...] | None, part: Buffer, at: int
) -> Buffer:  # fmt: skip
    """A result in memory that begins `at` bytes into that of an input, whose block it holds."""
    owner = part.block if type(part) is Part else part.array
    memory = np.asarray(_Held(part.address + at, prod(shape) * dtype.itemsize, owner))
    return Buffer(_shaped(memory, shape, dtype, order), "cpu", order, part.address + at)


def _shaped(memory: np.ndarray, shape: tuple[int, ...], dtype: np.dtype, order: tuple[int, ...] | None) -> np.ndarray:
    """Bytes as an array of a logical shape, whose axes lie in `order`."""
    physical = shape if order is None else tuple(shape[a] for a in order)
    array = memory.view(dtype).reshape(physical)
    return array if order is None else array.transpose(tuple(order.index(a) for a in range(len(order))))


class CpuBackend(Backend):
    name = "cpu"

    def __init__(self) -> None:
        self._arena = arena.Arena()

    def devices(self) -> list[str]:
        return ["cpu"]

    def properties(self, device: str) -> Properties:
        target = detect.detect()
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
        return Properties("CPU", "cpu", compiler.core_count(), pages, target.level, {"threads": get_num_threads()})

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Buffer:
        return Buffer(arena.empty(shape, dtype.numpy))

    def reserve(self, nbytes: int) -> int:
        """The arena's address, with at least this many bytes."""
        return self._arena.reserve(nbytes)

    def plan_key(self) -> Any:
        return get_num_threads(), precision.float32_matmul, switched_off()

    def memory_stats(self) -> dict[str, int]:
        stats, kernels = arena.default_allocator.stats(), compiler.default()
        return {
            "allocated_bytes": stats.current,
            "peak_bytes": stats.peak,
            "kept_bytes": stats.kept,
            "arena_bytes": self._arena.nbytes,
            "mappings": stats.mapped,
            "kernels_loaded": len(kernels.memory),
            "kernels_compiled": kernels.compiled,
            "kernels_from_disk": kernels.disk_hits,
        }

    def reset_peak_memory_stats(self) -> None:
        arena.default_allocator.reset_peak()

    def empty_cache(self) -> None:
        self._arena.release()
        arena.default_allocator.trim()

    def compile(
        self,
        graph: Graph,
        donatable: frozenset[int] = frozenset(),
        inputs: Sequence[Buffer] = (),
        together: frozenset[int] = frozenset(),
    ) -> Program:
        return CpuProgram(self._schedule(graph, donatable, inputs, together)(None), graph.leaves, self)

    def compile_within(
        self, graph: Graph, donatable: frozenset[int], inputs: Sequence[Buffer], limit: Limit
    ) -> LimitedProgram:
        """As `compile`; what the program needs for its arena and new results is no more than a limit."""
        make = self._schedule(graph, donatable, inputs)
        return LimitedProgram(make, lambda schedule: CpuProgram(schedule, graph.leaves, self), limit)

    def _schedule(
        self,
        graph: Graph,
        donatable: frozenset[int],
        inputs: Sequence[Buffer],
        together: frozenset[int] = frozenset(),
    ) -> Callable[[Effort | None], Schedule]:
        """What schedules a graph with a given effort to save memory."""
        orders = {leaf: b.order or row_major(leaf.ndim) for leaf, b in zip(graph.leaves, inputs)}
        may_write = frozenset(graph.leaves[k] for k in donatable)
        parts = frozenset(graph.leaves[k] for k in donatable if type(inputs[k]) is Part)
        target, threads = detect.detect(), get_num_threads()
        # Three products of bf16 are quicker than one of f32 only where tiles are multiplied.
        bf16_products = {"medium": 1, "high": 3 if target.amx else 0}.get(precision.float32_matmul, 0)
        with _no_collection():
            primitive = restructure(graph)

        def schedule(effort: Effort | None) -> Schedule:
            with _no_collection():
                return build(
                    primitive, orders, may_write, target, threads, bf16_products, effort, parts, sorted(together)
                )

        return schedule


@contextmanager
def _no_collection() -> Iterator[None]:
    """No search for cyclic garbage: planning makes very many objects, most of which stay, and going through them again and
    again took a quarter of its time (ResNet-50's training step)."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
