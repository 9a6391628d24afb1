"""Recomputation: what is large and cheap to make again is not kept for a use much later.

A training step's memory is what its forward pass leaves for the backward pass.  Much of it can be had again from values
that are kept anyway by reading them once more: an activation from the convolution's result and the statistics of its batch
norm, a residual sum from its terms.  Such a value is freed after its last early use; for the late ones the same expression
is computed anew, from the kept values *as of later* (:class:`~lezero.ops.shaping.later`), which is what keeps it from being
computed early, or together with the first.

What is recomputed may depend on something else that is, as residual sums do on each other; each such step reads a value more.
What takes reading more than ``MOST_READ`` of its own size beyond what its late uses read anyway is kept: every second residual sum,
and parameters in a narrower type.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from lezero.graph.node import Graph, Node, with_inputs
from lezero.ops.base import REGISTRY
from lezero.schedule.group import Group
from lezero.schedule.groups import Grouping
from lezero.schedule.layout import Order
from lezero.schedule.order import in_order

LEAST_BYTES = 256 << 10
"""A value worth a kernel of its own."""
LEAST_TOTAL = 64 << 20
"""Memory at the peak from which on it is worth saving; what is smaller stays in the caches."""
LEAST_GAP = 1 / 16
"""The part of a schedule's kernels that run between an early and a late use."""
MOST_OPERATIONS = 32
"""Operations of a product for each byte of its result: less time than a few passes over the memory it would lie in."""
PRODUCTS = ("dot", "conv2d")
LEAST_BYTES_FOR_A_LIMIT = 16 << 10
LEAST_GAP_FOR_A_LIMIT = 3
"""Kernels between an early and a late use, where a limit must be kept."""
STATISTIC = 16
"""How much smaller than a value the sums and maxima of its rows are that are kept for it: with them it is one pass."""
MOST_READ = 1.5
"""What late uses may read more, in sizes of the value that they get recomputed; without it, ResNet-50's step in bf16 takes 3 %
longer in 10 % less memory."""
MOST_READ_IN_ALL = 2
"""The same where late uses, and what they read anyway, are not known yet (``runtime/residuals.py``): a sum of two values."""
MAX_CHAIN = 4
MAX_NODES = 48
"""Operations that one value may take."""


@dataclass(frozen=True)
class Effort:
    """How far to go in order to fit in a given amount of memory.

    chain : how many recomputed values in a row one may take, ``MAX_CHAIN`` otherwise
    products : recompute any product and convolution, not only cheap ones
    share : of what could be recomputed, by bytes saved for the time it takes
    rounds : how often to look again: what is kept for something recomputed may be recomputed itself
    """

    rounds: int = 1
    chain: int = MAX_CHAIN
    products: bool = False
    share: float = 1.0


@dataclass
class Dropped:
    """A value that is not kept.

    late : the time of the first use that gets the recomputed value
    token : what is computed shortly before that
    made_of : the values it is computed from
    chain : how many recomputed values in a row that takes
    """

    late: int
    token: Node
    made_of: frozenset[Node]
    chain: int


@dataclass
class Recomputed:
    """A value that is computed a second time; all nodes are those of the rewritten graph.

    first, again : the value as early and as late uses read it
    made_of : the values in memory that it is computed from
    chain : how many recomputed values in a row that takes
    """

    first: Node
    again: Node
    made_of: tuple[Node, ...]
    chain: int


def recompute(
    graph: Graph, orders: dict[Node, Order], grouping: Grouping, effort: Effort | None = None
) -> tuple[Graph, dict[Node, Order], list[Recomputed]]:
    """The graph, and the orders of its nodes, with late uses of what is dropped reading it recomputed; and what that is.

    With an `effort` nothing is too small to be looked at.
    """
    times = _times(grouping)
    uses = _uses(grouping, times)
    if effort is None and _peak(grouping, times, uses) < LEAST_TOTAL:
        return graph, orders, []
    dropped = _choose(graph, grouping, times, uses, effort)
    return _Rewrite(graph, orders, grouping, times, dropped).result() if dropped else (graph, orders, [])


def _times(grouping: Grouping) -> dict[Group, int]:
    """When each group runs."""
    groups = [g for g in grouping.groups if g.nodes]
    outputs = set(grouping.graph.outputs)
    read = {n for g in groups for n in g.reads}
    writes = {g: [n for n in g.nodes if n in read or n in outputs] for g in groups}
    order = in_order(
        groups, lambda g: g.reads, writes.__getitem__, lambda n: 0 if n.op.is_leaf or n in outputs else nbytes(n)
    )
    return {g: k for k, g in enumerate(order)}


def _uses(grouping: Grouping, times: dict[Group, int]) -> dict[Node, list[int]]:
    """When each value in memory is read by other kernels than its own."""
    uses: dict[Node, set[int]] = {}
    for g, at in times.items():
        for n in g.reads:
            if grouping.group_of.get(n) is not g:
                uses.setdefault(n, set()).add(at)
    return {n: sorted(found) for n, found in uses.items()}


def nbytes(node: Node) -> int:
    return int(prod(node.shape)) * node.dtype.itemsize


def _peak(grouping: Grouping, times: dict[Group, int], uses: dict[Node, list[int]]) -> int:
    """The most bytes of intermediate values at a time."""
    change = [0] * (len(times) + 1)
    for n, at in uses.items():
        if n in grouping.group_of:
            change[times[grouping.group_of[n]]] += nbytes(n)
            change[at[-1] + 1 if at[-1] + 1 < len(change) else -1] -= nbytes(n)
    most = now = 0
    for c in change:
        now += c
        most = max(most, now)
    return most


def _choose(
    graph: Graph,
    grouping: Grouping,
    times: dict[Group, int],
    uses: dict[Node, list[int]],
    effort: Effort | None = None,
) -> dict[Node, Dropped]:
    outputs = set(graph.outputs)
    least = max(1, int(len(times) * LEAST_GAP)) if effort is None else LEAST_GAP_FOR_A_LIMIT
    least_bytes = LEAST_BYTES if effort is None else LEAST_BYTES_FOR_A_LIMIT
    chain_limit, products = (MAX_CHAIN, False) if effort is None else (effort.chain, effort.products)
    dropped: dict[Node, Dropped] = {}
    at_time = {t: g for g, t in times.items()}
    found: list[tuple[Node, int, Node, frozenset[Node]]] = []
    for n in sorted(
        (n for n in uses if n in grouping.group_of and n not in outputs and nbytes(n) >= least_bytes),
        key=lambda n: times[grouping.group_of[n]],
    ):
        at = [times[grouping.group_of[n]], *uses[n]]
        gap, late = max((b - a, b) for a, b in pairwise(at))
        made_of = None
        if gap >= least:
            made_of = _through_products(n, late, grouping, uses) if products else _made_of(n, grouping, uses)
        if made_of is None:
            continue
        ready = {x: times[grouping.group_of[x]] for x in at_time[late].reads if x in grouping.group_of and x is not n}
        token = max(ready, key=ready.__getitem__, default=None)
        if token is not None and ready[token] >= late - gap / 2:  # otherwise nothing tells late from early
            found.append((n, late, token, made_of))
    if effort is not None:
        found = _first(found, effort.share)
    for n, late, token, made_of in _paying(found, grouping, uses):
        chain = 1 + max((dropped[x].chain for x in made_of if x in dropped), default=0)
        anyway = set().union(*(at_time[t].reads for t in uses[n] if t >= late))
        cheap = effort is not None or _more(made_of, anyway, dropped) <= MOST_READ * nbytes(n)
        if cheap and chain <= chain_limit and token not in dropped:
            dropped[n] = Dropped(late, token, made_of, chain)
    for d in list(dropped.values()):
        for x in d.made_of:
            _drop_with(x, d, grouping, uses, dropped, chain_limit)
    return dropped


def _more(made_of: Collection[Node], anyway: Collection[Node], dropped: dict[Node, Dropped]) -> int:
    """Bytes to read for a value beyond what is read `anyway`, down to what is not dropped itself."""
    bytes_of = (
        _more(dropped[x].made_of, anyway, dropped) if x in dropped else nbytes(x) for x in made_of if x not in anyway
    )
    return sum(bytes_of)


def _first(
    found: list[tuple[Node, int, Node, frozenset[Node]]], share: float
) -> list[tuple[Node, int, Node, frozenset[Node]]]:
    """The part of the candidates that saves the most bytes for the time it takes, in the order given."""

    def price(f: tuple[Node, int, Node, frozenset[Node]]) -> float:
        n, _, _, made_of = f
        work, seen, todo = 0, {n, *made_of}, [n]
        while todo:
            x = todo.pop()
            work += _operations(x)
            fresh = [y for y in x.inputs if y not in seen]
            seen.update(fresh)
            todo += fresh
        moved = nbytes(n) + sum(map(nbytes, made_of))
        return (moved + work / MOST_OPERATIONS) / nbytes(n)

    chosen = {f[0] for f in sorted(found, key=price)[: round(share * len(found))]}
    return [f for f in found if f[0] in chosen]


def _drop_with(
    x: Node,
    above: Dropped,
    grouping: Grouping,
    uses: dict[Node, list[int]],
    dropped: dict[Node, Dropped],
    chain_limit: int,
) -> None:
    """What would be kept only for something recomputed from it, and can itself be had from what is there then, is not."""
    if x in dropped or above.chain == chain_limit or _there(x, above.late, grouping, uses):
        return
    if x not in grouping.outputs and nbytes(x) >= LEAST_BYTES and _within_reach(x, above.late, grouping, uses, dropped):
        made_of = _made_of(x, grouping, uses)
        assert made_of is not None
        dropped[x] = Dropped(above.late, above.token, made_of, above.chain + 1)


def _there(x: Node, late: int, grouping: Grouping, uses: dict[Node, list[int]]) -> bool:
    """Whether a value is in memory at a time anyway."""
    return x not in grouping.group_of or x in grouping.outputs or uses.get(x, [0])[-1] >= late


def _within_reach(
    x: Node, late: int, grouping: Grouping, uses: dict[Node, list[int]], others: Collection[Node]
) -> bool:
    """Whether a value can be recomputed at a time from what is there then, or is one of `others`."""
    made_of = _made_of(x, grouping, uses)
    return made_of is not None and all(m in others or _there(m, late, grouping, uses) for m in made_of)


def _through_products(node: Node, late: int, grouping: Grouping, uses: dict[Node, list[int]]) -> frozenset[Node] | None:
    """As `_made_of`, by any products and convolutions, and through values in memory that are gone by then."""
    return _made_of(node, grouping, uses, late) or _made_of(node, grouping, uses, late, through=False)


def _made_of(
    node: Node, grouping: Grouping, uses: dict[Node, list[int]], late: int | None = None, through: bool = True
) -> frozenset[Node] | None:
    """The values in memory that a value is computed from, element-wise or by one cheap product; None if it is neither.

    With a time `late`, by any product; and unless `through` is False, not the values that are gone by then, but what those are
    computed from.
    """
    found: set[Node] = set()

    def gone(n: Node) -> bool:
        simple = n.op.kind == "elementwise" or n.op.name in PRODUCTS
        return through and late is not None and simple and not _there(n, late, grouping, uses)

    seen = {node}
    todo = [node]
    while todo:
        n = todo.pop()
        if n is not node and (n.op.is_leaf or (n in uses and not gone(n))):
            found.add(n)
            continue
        if n is not node and n.op.kind == "contraction" and grouping.group_of[n] is grouping.group_of[node]:
            found.add(n)  # what follows its tiles can be had from it, if it is stored instead
            continue
        inside = n.op.kind == "reduce" and grouping.group_of[n] is grouping.group_of[node]  # of a softmax's rows
        if inside and STATISTIC * nbytes(n) <= nbytes(node):
            found.add(n)
            continue
        if (n is node and _cheap_product(n)) or (late is not None and n.op.name in PRODUCTS):
            inside = True
        if not (inside or n.op.kind in ("elementwise", "view", "source")) or len(seen) > MAX_NODES:
            return None
        for x in n.inputs:
            if x not in seen:
                seen.add(x)
                todo.append(x)
    return None if node.op.kind in ("view", "source", "reduce") else frozenset(found)


def _cheap_product(node: Node) -> bool:
    """Whether a contraction takes few operations for each byte it gives: scores of attention, convolutions of one pixel
    that make many channels from few."""
    return node.op.name in PRODUCTS and 2 * _depth(node) <= MOST_OPERATIONS * node.dtype.itemsize


def _depth(node: Node) -> int:
    """Products for each element of a contraction's result."""
    if node.op.name == "dot":
        return int(node.inputs[0].shape[-2 if node.attrs[0] else -1])
    return int(prod(node.inputs[1].shape[1:]))


def _operations(node: Node) -> int:
    """Operations of a product; those of everything else are counted by what it moves."""
    return 2 * _depth(node) * int(prod(node.shape)) if node.op.name in PRODUCTS else 0


def _paying(
    found: list[tuple[Node, int, Node, frozenset[Node]]], grouping: Grouping, uses: dict[Node, list[int]]
) -> list[tuple[Node, int, Node, frozenset[Node]]]:
    """Those of which more memory is freed than what they are made of takes, if that is kept for them alone."""
    candidates = {f[0] for f in found}
    extra = {
        n: frozenset(
            x
            for x in made_of
            if x not in candidates
            and not _there(x, late, grouping, uses)
            and not _within_reach(x, late, grouping, uses, candidates)
        )
        for n, late, _, made_of in found
    }
    saved: dict[frozenset[Node], int] = {}
    for n, e in extra.items():
        saved[e] = saved.get(e, 0) + nbytes(n)
    return [f for f in found if 3 * sum(map(nbytes, extra[f[0]])) <= 2 * saved[extra[f[0]]]]


class _Rewrite:
    """Builds the new graph."""

    def __init__(
        self,
        graph: Graph,
        orders: dict[Node, Order],
        grouping: Grouping,
        times: dict[Group, int],
        dropped: dict[Node, Dropped],
    ):
        self.graph, self.old_orders, self.grouping, self.times, self.dropped = graph, orders, grouping, times, dropped
        self.orders: dict[Node, Order] = {}
        self.kept: dict[Node, Node] = {}  # what each node is called in the new graph
        self.again: dict[Node, Node] = {}  # dropped value -> the recomputed one
        self.waiting: dict[tuple[Node, Node], Node] = {}
        self.below: dict[Node, frozenset[Node]] = {}  # dropped values that a node without memory is computed from
        self.versions: dict[tuple[Node, frozenset[Node]], Node] = {}

    def result(self) -> tuple[Graph, dict[Node, Order], list[Recomputed]]:
        order = self.graph.nodes()
        placed = self.grouping.group_of
        for n in order:
            if n not in placed:
                self.below[n] = frozenset(
                    y for x in n.inputs for y in ((x,) if x in self.dropped else self.below.get(x, ()))
                )
        # By time, so that what several uses share is made at the first of them; inputs come before what reads them.
        rank = {n: k for k, n in enumerate(order)}
        when = {n: self.times[g] for n, g in placed.items()}
        # A convolution's kernel has the mean that its sum of squares is written with before the kernel that stores it.
        made: dict[Node, int] = {}
        for n in order:
            made[n] = max([when.get(n, -1), *(made[x] for x in n.inputs)])
        for n in sorted(placed, key=lambda n: (made[n], rank[n])):
            self._note(n, with_inputs(n, tuple(self._read(x, when[n]) for x in n.inputs)))
        outputs = tuple(self._read(n, -1) for n in self.graph.outputs)
        return Graph(self.graph.leaves, outputs), self.orders, [self._done(x, made) for x, made in self.again.items()]

    def _done(self, x: Node, made: Node) -> Recomputed:
        d = self.dropped[x]
        made_of = (n if n.op.is_leaf else self.again.get(n, self.kept[n]) for n in d.made_of)
        return Recomputed(self.kept[x], made, tuple(made_of), d.chain)

    def _note(self, old: Node, new: Node) -> Node:
        self.kept[old] = new
        self.orders[new] = self.old_orders[old]
        return new

    def _read(self, x: Node, time: int) -> Node:
        """What a node that is computed at some time reads in place of `x`."""
        if x in self.dropped and time >= self.dropped[x].late:
            return self._recomputed(x, self.dropped[x].token)
        if x in self.grouping.group_of:
            return self.kept[x]
        late = frozenset(y for y in self.below[x] if time >= self.dropped[y].late)
        made = self.versions.get((x, late))
        if made is None:
            made = x if x.op.is_leaf else with_inputs(x, tuple(self._read(y, time) for y in x.inputs))
            self.versions[x, late] = made
            self.orders[made] = self.old_orders[x]
        return made

    def _recomputed(self, x: Node, token: Node) -> Node:
        made = self.again.get(x)
        if made is None:
            made = self.again[x] = self._copy(x, x, token, {})
        return made

    def _copy(self, n: Node, root: Node, token: Node, copies: dict[Node, Node]) -> Node:
        made = copies.get(n)
        if made is not None:
            return made
        if n is not root and n in self.dropped:
            made = self._recomputed(n, token)
        elif n is not root and (n.op.is_leaf or n in self.dropped[root].made_of):
            made = self._later(n, token)
        else:
            inputs = tuple(self._copy(x, root, token, copies) for x in n.inputs)
            made = Node(n.op, inputs, n.attrs, n.shape, n.dtype, n.device, weak=n.weak, site=n.site)
            self.orders[made] = self.old_orders[n]
        copies[n] = made
        return made

    def _later(self, n: Node, token: Node) -> Node:
        have = n if n.op.is_leaf else self.kept[n]
        self.orders[have] = self.old_orders[n]
        if not n.shape:
            return have
        key = (n, token)
        made = self.waiting.get(key)
        if made is None:
            made = Node(REGISTRY["later"], (have, self.kept[token]), (), n.shape, n.dtype, n.device, site=n.site)
            self.waiting[key] = made
            self.orders[made] = self.old_orders[n]
        return made
