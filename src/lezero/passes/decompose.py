"""Take coarse operations apart into the primitive ones the scheduler knows.

Element-wise primitives come out with operands of equal shape, in the dtype they are computed in, so that promotion and
broadcasting are visible as casts and expansions and nothing behind this pass has to know about them.
"""

from __future__ import annotations

from typing import Any

from lezero.graph.dim import exact, identical, same
from lezero.graph.dtype import DType, bool_, float32
from lezero.graph.node import Graph, Node, with_inputs
from lezero.ops.base import REGISTRY
from lezero.ops.expr import Expr


def decompose(graph: Graph) -> Graph:
    """The same graph in primitive operations."""
    done: dict[Node, Node] = {leaf: leaf for leaf in graph.leaves}
    known: dict[Any, _Parts] = {}
    for output in graph.outputs:
        _lower(output, done, known)
    return Graph(graph.leaves, tuple(done[n] for n in graph.outputs))


def _lower(root: Node, done: dict[Node, Node], known: dict[Any, _Parts]) -> None:
    """Fill `done` for `root` and what it needs (iterative: graphs are deep)."""
    stack: list[tuple[Node, Node | None]] = [(root, None)]
    while stack:
        node, became = stack.pop()
        if became is not None:  # its decomposition is lowered by now
            done[node] = done[became]
            continue
        if node in done:
            continue
        missing = [n for n in node.inputs if n not in done]
        if missing:
            stack.append((node, None))
            stack.extend((n, None) for n in missing)
            continue
        inputs = tuple(done[n] for n in node.inputs)
        if node.op.kind == "elementwise" and node.op.element is not None:
            _settle(done, node, _elementwise(node, inputs))
        elif node.op.decompose is not None:
            if node.op.kind == "elementwise":
                inputs = _promoted(node, inputs)
            target = _apart(node, inputs, known)
            _stamp(target, inputs, node)
            stack.append((node, target))
            stack.append((target, None))
        else:
            _settle(done, node, with_inputs(node, inputs))


_Parts = tuple[tuple[Node, ...], list[Node], Node]
"""What an operation came apart into: its operands, all the parts with inputs first, and the last of them."""


def _apart(node: Node, inputs: tuple[Node, ...], known: dict[Any, _Parts]) -> Node:
    """The decomposition of a node.  The rule is asked once for each kind of operands: layers have the same over and over."""
    operands = tuple([(exact(n.shape), n.dtype, n.weak, n.device, inputs.index(n)) for n in inputs])
    key = (node.op, exact(node.attrs), exact(node.shape), node.dtype, operands)
    if key not in known:
        assert node.op.decompose is not None
        target = _as(node.op.decompose(*(Expr(n) for n in inputs), **node.named_attrs()), node)
        known[key] = inputs, _between(inputs, target), target
        return target
    before, parts, target = known[key]
    new = dict(zip(before, inputs))
    for n in parts:
        below = tuple([new[x] for x in n.inputs])
        new[n] = Node(n.op, below, n.attrs, n.shape, n.dtype, n.device, weak=n.weak)
    return new[target]


def _between(inputs: tuple[Node, ...], target: Node) -> list[Node]:
    """What is computed from `inputs` to get `target`, in an order that works."""
    order: list[Node] = []
    done = set(inputs)
    stack = [target]
    while stack:
        node = stack[-1]
        missing = [n for n in node.inputs if n not in done]
        if node in done or not missing:
            stack.pop()
            if node not in done:
                done.add(node)
                order.append(node)
        else:
            stack.extend(missing)
    return order


def _stamp(target: Node, inputs: tuple[Node, ...], whole: Node) -> None:
    """Note on everything an operation comes apart into whose line it is, and whether it updates a parameter."""
    update = whole.op.updates or whole.update
    stack = [target] if whole.site is not None or update else []
    seen = set(inputs)
    while stack:
        node = stack.pop()
        if node in seen or node.op.is_leaf:
            continue
        seen.add(node)
        if node.site is None:
            node.site = whole.site
        if update:
            node.update = True
        stack.extend(node.inputs)


def _settle(done: dict[Node, Node], node: Node, primitive: Node) -> None:
    done[node] = primitive
    done[primitive] = primitive


def _as(result: Any, node: Node) -> Node:
    """A decomposition's result, which must be what the operation promised."""
    if not isinstance(result, Expr):
        raise AssertionError(f"{node.op.name}: decompose gave {type(result).__name__}")
    if result.dtype is not node.dtype:
        result = REGISTRY["cast"](result, dtype=node.dtype)
    if not _equal(result.shape, node.shape):
        raise AssertionError(f"{node!r}: decompose gave shape {tuple(result.shape)}")
    return result.node


def _equal(a: tuple, b: tuple) -> bool:
    return len(a) == len(b) and all(same(x, y) or int(x) == int(y) for x, y in zip(a, b))


def _elementwise(node: Node, inputs: tuple[Node, ...]) -> Node:
    wide = float32 if _by_a_number(node) else None
    operands = _promoted(node, inputs) if wide is None else tuple(cast_to(n, wide) for n in inputs)
    operands = tuple(expand_to(n, node.shape) for n in operands)
    made = Node(node.op, operands, node.attrs, node.shape, wide or node.dtype, node.device, site=node.site)
    result = cast_to(made, node.dtype)
    if node.update:
        made.update = result.update = True
    return result


def _by_a_number(node: Node) -> bool:
    """Whether something in half precision is multiplied or divided by a plain number, which is not rounded to half precision
    first (nor is it in PyTorch)."""
    if node.dtype.code not in ("bf16", "f16") or node.op.name not in ("mul", "div", "floor_divide"):
        return False
    numbers = node.inputs[1:] if node.op.name == "floor_divide" else node.inputs
    return any(n.weak and not n.shape for n in numbers)


def _promoted(node: Node, inputs: tuple[Node, ...]) -> tuple[Node, ...]:
    """An element-wise operation's operands in the dtype it computes in (unsigned ones must not wrap on the way to a float)."""
    op: Any = node.op
    if op.name == "cast":
        return inputs
    keep = getattr(op, "keep_dtype", ())
    movable = tuple(n for i, n in enumerate(node.inputs) if i not in keep)
    compute: DType = bool_ if op.domain == "bool" else op.compute_dtype(movable)
    number = float32 if compute.code in ("bf16", "f16") and getattr(op.decompose, "widens", False) else compute
    plain = [n.weak and not n.shape for n in node.inputs]
    return tuple(n if i in keep else cast_to(n, number if plain[i] else compute) for i, n in enumerate(inputs))


def cast_to(node: Node, dtype: DType) -> Node:
    if node.dtype is dtype:
        return node
    return Node(REGISTRY["cast"], (node,), (dtype,), node.shape, dtype, node.device)


def expand_to(node: Node, shape: tuple[int, ...]) -> Node:
    if identical(node.shape, shape):
        return node
    return Node(REGISTRY["expand"], (node,), (tuple(shape),), tuple(shape), node.dtype, node.device)
