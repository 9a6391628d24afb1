"""Matrix products and convolutions: from a group to the plan of a tiled kernel with its epilogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from math import prod
from typing import Any

from lezero.codegen.contraction import (
    ConvSpec,
    Epilogue,
    MatmulSpec,
    Prologue,
    plan_conv_forward,
    plan_conv_input_grad,
    plan_conv_weight_grad,
    plan_matmul,
)  # fmt: skip
from lezero.codegen.launch import Plan
from lezero.codegen.target import Target
from lezero.graph.dim import same
from lezero.graph.node import Node
from lezero.loops import ir
from lezero.ops.creation import compute_code
from lezero.passes.pipeline import switched_off
from lezero.schedule.group import Group
from lezero.schedule.groups import Grouping
from lezero.schedule.index import Ix, Var
from lezero.schedule.layout import from_planes, linear, now, planar, row_major
from lezero.schedule.lowered import number
from lezero.schedule.prepare import Matrices, matrix
from lezero.schedule.statistics import squares_of
from lezero.schedule.values import Values


class Contracted:
    """A contraction group, ready to be planned for any extents.

    operands : operand name -> node (results and inputs)
    offsets : operand name -> first element, an extent expression
    in_place : (result, input) where the result may take the input's memory
    """

    def __init__(self, group: Group, grouping: Grouping, stored: set[Node], bf16_products: int = 0):
        """`bf16_products`: how many may stand for a product of float32 in matrix products (see ``MatmulSpec``)."""
        self.root = root = group.nodes[0]
        self.name = ".".join(dict.fromkeys(n.op.name for n in group.nodes if n.op.name != "cast"))[:60]
        self.operands: dict[str, Node] = {}
        self.offsets: dict[str, int] = {}
        self.params: list[int] = []
        self.first_params: list[int] = []  # of what is computed while an operand is packed
        self.sums = [n for n in group.nodes if n.op.kind == "reduce"]
        self.stored = [root] if self.sums else [n for n in group.nodes if n in stored]
        widened = root.op.name == "conv2d_weight_grad" and self.stored != [root]
        plain = self.stored == [root] or widened
        tail = None if plain else _Tail(group, grouping, stored, self)
        self.epilogue = None if tail is None else tail.build()
        self.in_place = tail.in_place() if tail and root.op.name == "dot" else ()
        dtype = root.dtype.code
        if root.op.name == "dot":
            trans_a, trans_b = root.attrs
            self.a = self._matrix("a", root.inputs[0], grouping)
            self.b = self._matrix("b", root.inputs[1], grouping)
            # the stored matrix is transposed when its columns are apart and its rows are not
            a_turned, b_turned = not same(self.a.column_stride, 1), not same(self.b.column_stride, 1)
            turned = (trans_a != a_turned, trans_b != b_turned)
            head = _Head(group, grouping, self).build() if grouping.inline(self.a.source) else None
            bf16_products *= dtype == "f32"
            wide = (self.a.source.dtype is not root.inputs[0].dtype, self.b.source.dtype is not root.inputs[1].dtype)
            self.spec: Any = MatmulSpec(dtype, dtype, *turned, self.epilogue, bf16_products, head, wide)
            self.lda = self.a.column_stride if a_turned else self.a.row_stride
            self.ldb = self.b.column_stride if b_turned else self.b.row_stride
        else:
            planes = from_planes(root, grouping.orders[now(root.inputs[0])])
            self._convolution(root, dtype, f"{dtype} to f32" if widened else dtype, planes)
        if plain:
            self.operands[self._result_name()] = self.stored[0]
        for n in self.sums:
            self.operands["sum" if squares_of(n) is None else "squares"] = n

    def of(self, nodes: Mapping[Node, Node]) -> Contracted:
        """The same for a group of the same form, whose nodes are given by those of this one."""
        made = copy(self)
        made.root = nodes[self.root]
        made.operands = {name: nodes[n] for name, n in self.operands.items()}
        made.stored = [nodes[n] for n in self.stored]
        made.sums = [nodes[n] for n in self.sums]
        made.in_place = tuple((nodes[n], nodes[x]) for n, x in self.in_place)
        if self.root.op.name == "dot":
            made.a, made.b = (replace(m, source=nodes[m.source]) for m in (self.a, self.b))
        return made

    def _matrix(self, name: str, x: Node, grouping: Grouping) -> Any:
        m = _factor(x, grouping)
        self.operands[name] = m.source
        self.offsets[name] = m.offset
        return m

    def _result_name(self) -> str:
        return {"dot": "out", "conv2d": "out", "conv2d_input_grad": "dx", "conv2d_weight_grad": "dw"}[self.root.op.name]

    def _convolution(self, root: Node, dtype: str, out_dtype: str, planes: bool) -> None:
        attrs = root.named_attrs()
        (top, bottom), (left, right) = attrs["padding"]
        name = root.op.name
        x, w = map(now, root.inputs)
        if name == "conv2d":
            self.operands |= {"x": x, "w": w}
            channels, kernel = (x.shape[1], w.shape[0]), w.shape[2:]
        elif name == "conv2d_input_grad":
            self.operands |= {"dy": x, "w": w}
            channels, kernel = (root.shape[1], w.shape[0]), w.shape[2:]
        else:
            self.operands |= {"x": x, "dy": w}
            channels, kernel = (x.shape[1], w.shape[1]), root.shape[2:]
        self.spec = ConvSpec(
            tuple(map(int, channels)), tuple(map(int, kernel)), attrs["stride"], (top, left, bottom, right), attrs["dilation"],  # type: ignore[arg-type]
            attrs["groups"], dtype, out_dtype, self.epilogue, planar(root), planes, bool(self.sums),
            "winograd" not in switched_off(),
        )  # fmt: skip

    def plan(self, bindings: Sequence[int], threads: int, target: Target) -> Plan:
        """Size arithmetic: the launches for given extents."""

        def n(d: int) -> int:
            return number(d, bindings)

        root = self.root
        extra = tuple(n(d) for d in self.params)
        first = tuple(n(d) for d in self.first_params)
        if root.op.name == "dot":
            *batch, m, columns = (n(d) for d in root.shape)
            k = n(root.inputs[0].shape[-2 if root.attrs[0] else -1])
            return plan_matmul(
                self.spec, prod(batch), m, columns, k, threads, target,
                lda=n(self.lda), ldb=n(self.ldb), stride_a=n(self.a.batch_stride), stride_b=n(self.b.batch_stride),
                epilogue_params=extra, prologue_params=first,
            )  # fmt: skip
        if root.op.name == "conv2d":
            images, _, h, w = (n(d) for d in root.inputs[0].shape)
            return self._without_unwanted(plan_conv_forward(self.spec, images, h, w, threads, target, extra))
        image = root.shape if root.op.name == "conv2d_input_grad" else root.inputs[0].shape
        images, _, h, w = (n(d) for d in image)
        planner = plan_conv_input_grad if root.op.name == "conv2d_input_grad" else plan_conv_weight_grad
        return planner(self.spec, images, h, w, threads, target)

    def _without_unwanted(self, plan: Plan) -> Plan:
        """The plan, with memory of its own for a sum that nobody wants."""
        if self.sums and "squares" not in self.operands:
            last = plan.launches[-1]
            plan.launches[-1] = replace(last, operands=("w:parts", "sum", "w:squares"))
            plan.workspaces["w:squares"] = self.spec.channels[1] * self.sums[0].dtype.itemsize
        return plan


def _factor(x: Node, grouping: Grouping) -> Matrices:
    """Where a product reads an operand."""
    m = matrix(x, grouping.orders, grouping.outputs)
    assert m is not None, x
    return replace(m, source=m.source.inputs[0]) if m.source in grouping.rounded else m


class _Head(Values):
    """A product's first operand, computed while it is packed: an expression of "row" and "col" of the matrix in memory."""

    def __init__(self, group: Group, grouping: Grouping, owner: Contracted):
        super().__init__(group, grouping, set())
        self.owner = owner
        self.names: list[tuple[str, str]] = []

    def build(self) -> Prologue:
        x = self.owner.root.inputs[0]
        position = tuple(Ix.of(Var(name, d)) for name, d in zip(("row", "col"), x.shape))
        value = ir.cast(self.value(x, position), x.dtype.code)
        self.owner.first_params = list(self.params.values)
        # the matrix itself is not in memory: what it is computed from stands for it
        self.owner.operands["a"] = self.owner.operands[self.names[0][0]]
        return Prologue(value, tuple(self.names), len(self.params.values))

    def buffer(self, what: Any, type: str, mode: str = "r") -> int:
        if what not in self.buffers:
            self.buffers[what] = len(self.names)
            name = f"p{len(self.names)}"
            self.names.append((name, type))
            self.owner.operands[name] = what
        return self.buffers[what]


class _Tail(Values):
    """The element-wise work behind a contraction as an epilogue: expressions of "tile", "row", "col" and "batch"."""

    def __init__(self, group: Group, grouping: Grouping, stored: set[Node], owner: Contracted):
        super().__init__(group, grouping, stored)
        self.owner = owner
        self.root = group.nodes[0]
        self.names: list[tuple[str, str]] = []
        self.read: list[tuple[Node, ir.Value, int]] = []  # what is loaded, where, and for which output
        self.done = 0

    def build(self) -> Epilogue:
        outputs = []
        for i, n in enumerate(self.stored):
            value = self.rounding.narrow(self.value(n, self.group.index[n]), n.dtype.code)
            name = f"out{i}"
            self.owner.operands[name] = n
            outputs.append((name, n.dtype.code, value))
            self.done = i + 1
        self.owner.params = list(self.params.values)
        return Epilogue(tuple(outputs), tuple(self.names))

    def _value(self, node: Node, position: tuple[Ix, ...], mask: ir.Value | None) -> ir.Value:
        if node is self.root:
            return self._rounded(ir.acc("tile", compute_code(node.dtype)), node)
        return super()._value(node, position, mask)

    def buffer(self, what: Any, type: str, mode: str = "r") -> int:
        if what not in self.buffers:
            self.buffers[what] = len(self.names)
            name = f"e{len(self.names)}"
            self.names.append((name, type))
            self.owner.operands[name] = what
        return self.buffers[what]

    def _index(self, at: Ix) -> ir.Value:
        affine = at.affine()
        assert affine is not None
        root, group = self.root, self.group
        order = self.grouping.orders[root] if root.op.name != "dot" else row_major(len(group.variables))
        variables = [group.variables[a] for a in order]
        total = self.params.value(at.constant)

        def add(total: ir.Value, v: ir.Value, coefficient: int) -> ir.Value:
            if same(coefficient, 0):
                return total
            term = v if same(coefficient, 1) else ir.call("mul", v, self.params.value(coefficient))
            return ir.call("add", total, term)

        if root.op.name != "dot" and planar(root):
            images, channels, y, x = group.variables
            column = x if not same(x.extent, 1) else y  # planes are the rows: the column counts their pixels
            total = add(total, ir.var("col"), affine.get(column.name, 0))
            total = add(total, ir.var("channel"), affine.get(channels.name, 0))
            return add(total, ir.var("batch"), affine.get(images.name, 0))
        total = add(total, ir.var("col"), affine.get(variables[-1].name, 0))
        if root.op.name != "dot":
            step = next((affine.get(v.name, 0) for v in reversed(variables[:-1]) if not same(v.extent, 1)), 0)
            return add(total, ir.var("row"), step)
        total = add(total, ir.var("row"), affine.get(variables[-2].name, 0))
        batch = [v for v in variables[:-2] if not same(v.extent, 1)]
        left = ir.var("batch")
        for i, v in enumerate(reversed(batch)):
            here = left if i == len(batch) - 1 else ir.call("mod", left, self.params.value(v.extent))
            total = add(total, here, affine.get(v.name, 0))
            if i < len(batch) - 1:
                left = ir.call("floordiv", left, self.params.value(v.extent))
        return total

    def _load(self, node: Node, position: tuple[Ix, ...], mask: ir.Value | None) -> ir.Value:
        k = self.buffer(node, node.dtype.code)
        index = self._index(linear(position, node.shape, self.grouping.orders[node]))
        self.read.append((node, index, self.done))
        return ir.cast(ir.load(k, node.dtype.code, index), compute_code(node.dtype))

    def in_place(self) -> tuple[tuple[Node, Node], ...]:
        """(result, input) where each tile of the result may be stored over the one of the input that it was computed from.

        A tile is finished once, and a vector of it is loaded before the first result that is computed from it is stored.
        """
        factors = {_factor(x, self.grouping).source for x in self.root.inputs}
        pairs = []
        for i, n in enumerate(self.stored):
            own = self._index(linear(self.group.index[n], n.shape, self.grouping.orders[n]))
            for x in dict.fromkeys(node for node, _, _ in self.read):
                at = [(index, first) for node, index, first in self.read if node is x]
                if x.dtype is n.dtype and x not in factors and all(index == own and first <= i for index, first in at):
                    pairs.append((n, x))
        return tuple(pairs)
