"""Matrix products and convolutions: from a group to the plan of a tiled kernel with its epilogue."""

from __future__ import annotations

from collections.abc import Sequence
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
from lezero.schedule.groups import Group, Grouping
from lezero.schedule.index import Ix, Var
from lezero.schedule.layout import linear, now, planar, row_major
from lezero.schedule.lower import Lowering, number
from lezero.schedule.prepare import matrix


class Contracted:
    """A contraction group, ready to be planned for any extents.

    operands : operand name -> node (results and inputs)
    offsets : operand name -> first element, an extent expression
    """

    def __init__(self, group: Group, grouping: Grouping, stored: set[Node]):
        self.root = root = group.nodes[0]
        self.name = ".".join(dict.fromkeys(n.op.name for n in group.nodes if n.op.name != "cast"))[:60]
        self.operands: dict[str, Node] = {}
        self.offsets: dict[str, int] = {}
        self.params: list[int] = []
        self.first_params: list[int] = []  # of what is computed while an operand is packed
        self.stored = [n for n in group.nodes if n in stored]
        plain = self.stored == [root]
        self.epilogue = None if plain else _Tail(group, grouping, stored, self).build()
        dtype = root.dtype.code
        if root.op.name == "dot":
            trans_a, trans_b = root.attrs
            self.a = self._matrix("a", root.inputs[0], grouping)
            self.b = self._matrix("b", root.inputs[1], grouping)
            # the stored matrix is transposed when its columns are apart and its rows are not
            a_turned, b_turned = not same(self.a.column_stride, 1), not same(self.b.column_stride, 1)
            head = _Head(group, grouping, self).build() if grouping.inline(self.a.source) else None
            self.spec: Any = MatmulSpec(dtype, dtype, trans_a != a_turned, trans_b != b_turned, self.epilogue, head)
            self.lda = self.a.column_stride if a_turned else self.a.row_stride
            self.ldb = self.b.column_stride if b_turned else self.b.row_stride
        else:
            self._convolution(root, dtype)
        if plain:
            self.operands[self._result_name()] = root

    def _matrix(self, name: str, x: Node, grouping: Grouping) -> Any:
        m = matrix(x, grouping.orders, grouping.outputs)
        assert m is not None, x
        self.operands[name] = m.source
        self.offsets[name] = m.offset
        return m

    def _result_name(self) -> str:
        return {"dot": "out", "conv2d": "out", "conv2d_input_grad": "dx", "conv2d_weight_grad": "dw"}[self.root.op.name]

    def _convolution(self, root: Node, dtype: str) -> None:
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
            attrs["groups"], dtype, dtype, self.epilogue, planar(root),
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
            return plan_conv_forward(self.spec, images, h, w, threads, target, extra)
        image = root.shape if root.op.name == "conv2d_input_grad" else root.inputs[0].shape
        images, _, h, w = (n(d) for d in image)
        planner = plan_conv_input_grad if root.op.name == "conv2d_input_grad" else plan_conv_weight_grad
        return planner(self.spec, images, h, w, threads, target)


class _Head(Lowering):
    """A product's first operand, computed while it is packed: an expression of "row" and "col" of the matrix in memory."""

    def __init__(self, group: Group, grouping: Grouping, owner: Contracted):
        super().__init__(group, grouping, set())
        self.owner = owner
        self.names: list[tuple[str, str]] = []

    def build(self) -> Prologue:  # type: ignore[override]
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


class _Tail(Lowering):
    """The element-wise work behind a contraction as an epilogue: expressions of "tile", "row", "col" and "batch"."""

    def __init__(self, group: Group, grouping: Grouping, stored: set[Node], owner: Contracted):
        super().__init__(group, grouping, stored)
        self.owner = owner
        self.root = group.nodes[0]
        self.names: list[tuple[str, str]] = []

    def build(self) -> Epilogue:  # type: ignore[override]
        outputs = []
        for i, n in enumerate(self.stored):
            value = ir.cast(self.value(n, self.group.index[n]), n.dtype.code)
            name = f"out{i}"
            self.owner.operands[name] = n
            outputs.append((name, n.dtype.code, value))
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
        return ir.cast(ir.load(k, node.dtype.code, index), compute_code(node.dtype))
