"""The trie of what was recorded: going along it, letting it grow, letting it go.

A recording is a path; each node knows which node followed last time (``next``) and all that ever did (``branches``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lezero.graph.dtype import as_dtype
from lezero.graph.node import Node
from lezero.ops.base import LEAF
from lezero.runtime.inference import Inferred

if TYPE_CHECKING:
    from lezero.runtime.recording import Recording

MAX_TRIE_NODES = 400_000
"""The trie is started anew beyond this many nodes (about 250 MB at worst)."""
MAX_BRANCHES = 128
"""How many different continuations of one node are remembered; the oldest goes first."""


class Root(Node):
    """Where a trie begins."""

    __slots__ = ("forgotten", "limit")

    def __init__(self, limit: Any = None) -> None:
        super().__init__(LEAF, (), ("root",), (), as_dtype("float32"))
        self.forgotten = False
        self.limit = limit  # on the memory of what is recorded here: see schedule/budget.py


forgetting: list[Callable[[Root], None]] = []
"""Called with a trie that no recording will begin in any more."""


def forget(root: Root) -> None:
    """Let go of a trie: of what is compiled for its paths, and of the paths.

    Any tensor with a value refers to the node it was computed as, and would keep the whole trie alive: so the links are cut.
    A recording that is still in it finds nothing and goes on by itself.
    """
    root.forgotten = True
    for let_go in forgetting:
        let_go(root)
    stack: list[Node] = [root]
    while stack:
        node = stack.pop()
        following = node.branches or (() if node.next is None else (node.next,))
        node.next = node.branches = node.plans = node.replays = None
        stack.extend(following)


_root = Root()
size = 0
"""How many nodes the trie has."""
resets = 0
"""How often it was begun anew because it was full."""


def current() -> Root:
    """The trie that a recording begins in now."""
    global resets
    if size > MAX_TRIE_NODES:
        begin_anew()
        resets += 1
    return _root


def begin_anew() -> None:
    """Let go of the trie; recordings begin in a new one from now on."""
    global _root, size
    old, _root, size = _root, Root(), 0
    forget(old)


def tracks(found: Inferred, inputs: tuple[Node, ...], grad_mode: bool) -> bool:
    """Whether the gradient walk goes through what is `found` for these inputs."""
    if grad_mode and found.differentiable:
        for n in inputs:
            if n.tracks:
                return True
    return found.op.begins


def advance(rec: Recording, found: Inferred, inputs: tuple[Node, ...], grad_mode: bool, track: bool, site: Any) -> Node:
    """What follows `rec.tail` by structure alone, made if there is none yet; the recording moves on to it."""
    tail = rec.tail
    node = tail.next
    if node is None:
        node = extend(tail, found, inputs, grad_mode, track, site)
    elif not _is(node, found, inputs, grad_mode, track):
        for node in tail.branches or ():
            if _is(node, found, inputs, grad_mode, track):
                tail.next = node
                break
        else:
            node = extend(tail, found, inputs, grad_mode, track, site)
    rec.tail = node
    return node


def _is(node: Node, found: Inferred, inputs: tuple[Node, ...], grad_mode: bool, track: bool) -> bool:
    return (
        (node.found is found or node.found.same(found))
        and node.inputs == inputs
        and node.grad_mode is grad_mode
        and node.tracks is track
    )


def extend(tail: Node, found: Inferred, inputs: tuple[Node, ...], grad_mode: bool, track: bool, site: Any) -> Node:
    """A new node behind `tail`."""
    global size
    spec = found.spec
    node = Node.__new__(Node)  # spelled out: half the price of a call with keywords
    node.found, node.op, node.attrs, node.inputs = found, found.op, found.attrs, inputs
    node.shape, node.dtype, node.device, node.weak = spec.shape, spec.dtype, spec.device, spec.weak
    node.tracks, node.site, node.grad_mode, node.index = track, site, grad_mode, tail.index + 1
    node.guards, node.static, node.update = found.guards, True, False
    node.next = node.branches = node.plans = node.replays = None
    first = tail.next
    if first is not None:
        branches = tail.branches
        if branches is None:
            branches = tail.branches = [first]
        elif len(branches) >= MAX_BRANCHES:
            del branches[0]
        branches.append(node)
    tail.next = node
    size += 1
    return node
