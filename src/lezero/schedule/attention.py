"""Attention's kernels: from a node to their plan (``codegen/contraction/attention/``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt

from lezero.codegen.contraction.attention import AttentionSpec, Extents, Numbers, plan_attention, plan_attention_grad
from lezero.codegen.launch import Plan
from lezero.codegen.target import Target
from lezero.graph.node import Node
from lezero.loops.ir import call, var
from lezero.ops.random import random_words
from lezero.ops.rules import wide_dtype
from lezero.schedule.contractions import Contracted
from lezero.schedule.group import Group
from lezero.schedule.groups import Grouping
from lezero.schedule.lowered import number
from lezero.schedule.strided import strided

OPERANDS = {
    "attention_blocks": ("q", "k", "v"),
    "attention_blocks_grad": ("dy", "y", "logarithm", "q", "k", "v"),
}
STATE = ("seed", "offset")
WITHOUT_STRIDES = frozenset(("y", "logarithm", *STATE))
BITS = random_words(call("add", var("row"), var("col")), *map(var, STATE))[0]
"""The first word of a weight, as `uniform` draws it."""
RESULTS = {"attention_blocks": ("y", "logarithm"), "attention_blocks_grad": ("dq", "dk", "dv")}


class Attention(Contracted):
    """A kernel of attention, ready to be planned for any extents."""

    def __init__(self, group: Group, grouping: Grouping):
        self.root = root = group.nodes[0]
        self.name = root.op.name
        self.operands: dict[str, Node] = {str(n.named_attrs()["gives"]): n for n in group.nodes}
        self.offsets: dict[str, int] = {}
        self.stored, self.sums, self.in_place = list(group.nodes), [], ()
        self.strides: dict[str, tuple[int, ...]] = {}
        self.p = float(root.named_attrs()["p"])
        names = (*OPERANDS[root.op.name], *(STATE if self.p else ()), "mask")
        self.inputs = dict(zip(names, root.inputs))
        for name, x in self.inputs.items():
            found = strided(x, grouping.orders, grouping.outputs)
            assert found is not None, x
            self.operands[name], self.offsets[name], self.strides[name] = found.source, found.offset, found.strides
        mask = self.inputs["mask"].dtype.code if "mask" in self.inputs else None
        self.spec = AttentionSpec(
            self.inputs["q"].dtype.code, mask, bool(root.named_attrs()["is_causal"]), BITS if self.p else None
        )

    def plan(self, bindings: Sequence[int], threads: int, target: Target) -> Plan:
        """Size arithmetic: the launch for given extents."""

        def n(d: int) -> int:
            return number(d, bindings)

        q, v = self.inputs["q"].shape, self.inputs["v"].shape
        batch, heads, queries, features = map(n, q)
        extents = Extents(batch, heads, queries, n(v[-2]), features, n(v[-1]))
        scale = self.root.named_attrs()["scale"]
        strides = {
            name: tuple(n(s) for s in found[:3]) for name, found in self.strides.items() if name not in WITHOUT_STRIDES
        }
        planner = plan_attention if self.root.op.name == "attention_blocks" else plan_attention_grad
        numbers = Numbers(1 / sqrt(features) if scale is None else scale, self.p)
        plan = planner(self.spec, extents, strides, numbers, threads, target)
        return self._without_unwanted(plan, extents)

    def _without_unwanted(self, plan: Plan, e: Extents) -> Plan:  # type: ignore[override]
        """The plan, with memory of its own for a result that nobody wants."""
        unwanted = [name for name in RESULTS[self.root.op.name] if name not in self.operands]
        rows = {"y": e.queries * e.values, "logarithm": e.queries, "dq": e.queries * e.features}
        rows |= {"dk": e.keys * e.features, "dv": e.keys * e.values}
        (launch,) = plan.launches
        operands = tuple(f"w:{name}" if name in unwanted else name for name in launch.operands)
        sizes = {f"w:{name}": e.batch * e.heads * rows[name] * self._itemsize(name) for name in unwanted}
        return Plan([replace(launch, operands=operands)], sizes)

    def _itemsize(self, name: str) -> int:
        return wide_dtype(self.inputs["q"].dtype).itemsize if name == "logarithm" else self.inputs["q"].dtype.itemsize
