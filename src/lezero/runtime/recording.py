"""Recordings, the handles on what is in them, and what each thread has of both."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, ref

from lezero.graph import dim as dims
from lezero.graph.dim import Dim
from lezero.graph.node import Node
from lezero.hal.buffer import Buffer
from lezero.ops.base import Op
from lezero.runtime import trie
from lezero.runtime.inference import Spec


class Handle:
    """What a user holds: a place in a recording, or a realised value.  ``Tensor`` is this with methods.

    Attributes (defaults on the class keep construction short)
    ----------
    _rec, _node : the recording this is a value of, and where in it; ``_rec`` is None for realised values
    _buffer : the realised value
    _dynamic : axes whose extents become symbols when a recording uses it
    _requires_grad : a leaf the gradient is wanted for
    _history : (Past, node) that a realised value came from, for gradients asked for later
    _base, _view : the tensor this is a view of, and (operation, attributes) giving it
    """

    _rec: Recording | None = None
    _node: Node = None  # type: ignore[assignment]  # there wherever _rec is
    _buffer: Buffer | None = None
    _shape: tuple[int, ...] | None = None
    _dynamic: tuple[int, ...] = ()
    _requires_grad = False
    _grad: Any = None
    _history: Any = None
    _base: Handle | None = None
    _view: tuple[Op, tuple] | None = None
    _views: list | None = None
    _hooks: dict | None = None
    _weak = False


class Recording:
    """One run's worth of operations: where it is in the trie, and what it holds of the outside world."""

    __slots__ = (
        "bindings", "buffers", "bytes", "checks", "count", "failed", "freed", "handles", "held", "hooks", "imported", "leaf_handles",
        "leaf_nodes", "ready", "regions", "root", "scalars", "shapes", "tail", "told", "variables",
    )  # fmt: skip

    def __init__(self) -> None:
        self.root = trie.current()
        self.tail: Node = self.root
        self.count = 0
        self.bytes = 0
        self.bindings: list[int] = []
        self.shapes: dict[Spec, tuple[int, ...]] = {}  # with the extents of this recording
        self.held: set[Any] = set()  # templates whose guards hold for these bindings
        self.handles: list[ref] = []  # of every operation recorded, in order
        self.imported: dict[int, Node] = {}  # id of a handle -> its leaf
        self.leaf_handles: list[Handle | None] = []  # in step with leaf_nodes and buffers
        self.leaf_nodes: list[Node] = []
        self.buffers: list[Buffer] = []
        # (position in buffers, where the value comes from)
        self.scalars: list[tuple[int, Callable[[], Any] | None]] = []
        self.variables: dict[Node, Handle] = {}  # leaves (and re-pointed leaves) gradients are accumulated into
        self.hooks: dict[Node, dict] = {}  # called with the gradient that arrives at a node
        self.checks: list[Any] = []  # indices to look at when they are computed: see runtime/bounds.py
        self.failed = False  # a run of it raised: see runtime/failed.py
        self.told = False  # ... and said that tensors could not be written to
        self.ready = False  # the thread that made it is about to run it
        self.freed: list[Node] = []  # roots whose gradients have been taken
        self.regions: list[Any] = []  # of which nothing inside is kept: see runtime/checkpoint.py

    def symbol(self, n: int) -> int:
        """The extent `n` as a symbol of this recording; equal extents share one.  0 and 1 are never symbols."""
        if n < 2:
            return n
        try:
            k = self.bindings.index(n)
        except ValueError:
            k = len(self.bindings)
            if k > 256 and not self.leaf_nodes and not self.count:
                self.bindings.clear()
                k = 0
            self.bindings.append(n)
        return Dim.symbol(k, n)

    def shape_of(self, node: Node) -> tuple[int, ...]:
        """A node's shape with the extents of this recording."""
        spec = node.found.spec
        if not spec.symbolic:
            return spec.shape
        shape = self.shapes.get(spec)
        if shape is None:
            shape = self.shapes[spec] = dims.rehint(spec.shape, self.bindings)
        return shape

    def stale(self, d: Dim) -> bool:
        """Whether an extent is of a recording that has ended: its symbols mean others by now."""
        try:
            return dims.evaluate(d.expr, self.bindings) != int(d)
        except IndexError:
            return True


thread_states: WeakKeyDictionary[threading.Thread, dict[str, Any]] = WeakKeyDictionary()
"""What the state is in each thread that has one."""


def other_threads() -> list[tuple[threading.Thread, dict[str, Any]]]:
    """The threads besides this one that have a state, and that."""
    mine = threading.current_thread()
    threads = [r() for r in thread_states.keyrefs()]  # a list made at once, since threads may begin meanwhile
    return [(t, s) for t in threads if t is not None and t is not mine and (s := thread_states.get(t)) is not None]


class _State(threading.local):
    """Per thread: the recording in progress and the modes."""

    def __init__(self) -> None:
        self.recording = Recording()
        thread_states[threading.current_thread()] = self.__dict__  # of this thread
        self.grad_mode = True
        self.in_rule = False  # inside a gradient rule: Python scalars are constants
        self.autocast: Any = None  # (operation, operands) -> operands, while operations choose their precision
        self.skip_update: Any = None  # a 0-d bool: where it holds, optimizers leave everything as it is
        self.site: tuple[str, int] | None = None  # the line to give recorded nodes, where it is known already
        self.capture: Any = None  # the jit capture in progress
        # handles re-pointed while a segment is learned, and what they stood for
        self.adopted: list[tuple] | None = None


STATE = _State()


def start_anew() -> None:
    """Forget the trie; this thread's recording, which is empty, starts in a new one."""
    trie.begin_anew()
    STATE.recording = Recording()


capturing = 0
"""How many captures are in progress, in all threads: modules look here first, since it is quicker than STATE."""
_counting = threading.Lock()


def count_capture(by: int) -> None:
    """One capture more (1) or less (-1) is in progress."""
    global capturing
    with _counting:
        capturing += by
