"""Products that are added up become one product of their operands side by side.

A weight that every step of a sequence uses gets the sum of the steps' products as its gradient.  Each of them is short, and reads
and writes the whole sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from lezero.graph.dim import same
from lezero.graph.node import Graph, Node, with_inputs
from lezero.ops.base import REGISTRY
from lezero.ops.expr import Expr
from lezero.ops.slicing import part
from lezero.passes.parts import sums

LEAST = 4
"""Terms from which on they are joined."""
Terms = list[Node]


def join_products(graph: Graph) -> Graph:
    """``dot(a, x) + dot(b, y) + …`` becomes ``dot(concatenate(a, b, …), concatenate(x, y, …))``.

    Products are joined if their sum, which each of them would read and write, is larger than their operands; and with them the
    sums of their first operands' rows, which are the gradient of a bias.  Where operands stand side by side in a larger value
    already, as the gradients of all steps do for the weights of the inputs, they are a slice of that.
    """
    among = sums(graph)
    products = {root: [n for n in terms if _short(n)] for root, terms in among.items()}
    products = {root: terms for root, terms in products.items() if len(terms) >= LEAST}
    if not products:
        return graph
    operands = {n.inputs[0] for terms in products.values() for n in terms}
    columns = {root: [n for n in terms if _summed(n) in operands] for root, terms in among.items()}
    together = {root: terms for root, terms in columns.items() if len(terms) >= LEAST} | products
    rows = _Rows()
    new: dict[Node, Node] = {}
    for node in graph.nodes():
        made = node if node.op.is_leaf else with_inputs(node, tuple(new[n] for n in node.inputs))
        if node in together:
            inside = frozenset(together[node])
            rest = [new[n] for n in among[node] if n not in inside]
            made = _total([*rest, _joined([new[n] for n in among[node] if n in inside], rows)])
        new[node] = rows.known(made)
    return Graph(graph.leaves, tuple(new[n] for n in graph.outputs))


def _short(n: Node) -> bool:
    """Whether a product has less to read than its result takes, and rows that can stand below others."""
    if n.op.name != "dot" or n.ndim != 2 or n.attrs != (True, False) or n.dtype.kind != "f":
        return False
    return sum(prod(map(int, x.shape)) for x in n.inputs) < 2 * prod(map(int, n.shape))


def _summed(n: Node) -> Node | None:
    """The matrix of whose rows this is the sum."""
    return n.inputs[0] if n.op.name == "sum" and n.inputs[0].ndim == 2 and n.attrs == ((0,), False) else None


def _total(terms: Iterable[Node]) -> Node:
    first, *others = map(Expr, terms)
    for value in others:
        first = first + value
    return first.node


def _joined(terms: Terms, rows: _Rows) -> Node:
    """The sum of terms of one operation."""
    order = rows.order([n.inputs[0] for n in terms])
    operands = [rows.of([terms[k].inputs[i] for k in order]) for i in range(len(terms[0].inputs))]
    made = terms[0].op(*map(Expr, operands), **terms[0].named_attrs()).node
    made.site = terms[0].site
    return made


class _Rows:
    """Matrices one below the other."""

    def __init__(self) -> None:
        self._places: dict[
            Node, tuple[Node, int, int]
        ] = {}  # value -> (what it is in, its number there, where it begins)
        self._joined: dict[tuple[Node, ...], Node] = {}

    def known(self, node: Node) -> Node:
        """The node, or one that has the same values side by side; what stands where in it is remembered."""
        if node.op.name != "concatenate" or not all(same(d, 1) for d in node.shape[: node.attrs[0]]):
            return node
        bases = tuple(map(_base, node.inputs))
        have = self._joined.setdefault(bases, node)
        if have is not node:
            return REGISTRY["reshape"](Expr(have), shape=node.shape).node
        start: int = 0
        for k, x in enumerate(bases):
            self._places.setdefault(x, (node, k, start))
            start = start + prod(x.shape)
        return node

    def order(self, values: Sequence[Node]) -> list[int]:
        """That in which the values stand already, or else the opposite of the order given, in which gradients were added up."""
        places = [self._places.get(_base(x)) for x in values]
        found = [p for p in places if p is not None]
        if len(found) == len(values) and all(p[0] is found[0][0] for p in found):
            return sorted(range(len(values)), key=lambda k: found[k][1])
        return list(reversed(range(len(values))))

    def of(self, values: Sequence[Node]) -> Node:
        """The matrices as one."""
        runs: list[list[Node]] = []
        for x in values:
            if runs and self._follows(runs[-1][-1], x):
                runs[-1].append(x)
            else:
                runs.append([x])
        pieces = [self._run(run) for run in runs]
        if len(pieces) == 1:
            return pieces[0].node
        return self.known(REGISTRY["concatenate"](*pieces, axis=0).node)

    def _follows(self, before: Node, x: Node) -> bool:
        a, b = self._places.get(_base(before)), self._places.get(_base(x))
        return a is not None and b is not None and a[0] is b[0] and a[1] + 1 == b[1]

    def _run(self, values: Sequence[Node]) -> Expr:
        """Matrices that follow each other in another value, as rows of that."""
        if len(values) == 1:
            return Expr(values[0])
        (whole, _, start), columns = self._places[_base(values[0])], values[0].shape[1]
        rows = sum(x.shape[0] for x in values)
        flat = REGISTRY["reshape"](Expr(whole), shape=(prod(whole.shape) // columns, columns))
        return part(flat, 0, start // columns, start // columns + rows)


def _base(x: Node) -> Node:
    while x.op.name == "reshape":
        x = x.inputs[0]
    return x
