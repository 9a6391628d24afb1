"""Recording: what happens when an operation is applied to a tensor.

A recording is a path through a trie of nodes.  Applying an operation compares it with the node that followed last time:
same operation, attributes and inputs, and the node is used again, without inference.  Otherwise a branch is looked for,
and last of all a node is made (``_branch``; shape and dtype errors raise here, at the user's own line).

Measured on the reference machine: about 1 µs for a repeated operation, so everything on that path is spelled out.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, ref

from lezero.graph import dim as dims
from lezero.graph.dim import Dim
from lezero.graph.dtype import DType, as_dtype, number_dtype
from lezero.graph.node import Node
from lezero.hal.buffer import Buffer
from lezero.ops.base import LEAF, REGISTRY, Op
from lezero.runtime.inference import Inferred, Spec, constant_of, infer, leaf_of, scalar_of
from lezero.switched import switched

_PACKAGE = str(Path(__file__).resolve().parent.parent)
_NOT_USERS = (_PACKAGE, contextlib.__file__, functools.__file__)

MAX_TRIE_NODES = 400_000
"""The trie is started anew beyond this many nodes (about 250 MB at worst)."""
MAX_BRANCHES = 128
"""How many different continuations of one node are remembered; the oldest goes first."""
MAX_RECORDED = 20_000
"""A recording is run when it reaches this many operations, so that a forgotten tensor cannot grow it for ever."""
MAX_RECORDED_BYTES = 2 << 30
"""A recording is run when it holds more than this many bytes of data (parameters do not count: they are there anyway), so
that results which are collected and never read do not keep all they came from."""


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


thread_states: WeakKeyDictionary[threading.Thread, dict[str, Any]] = WeakKeyDictionary()
"""What the state is in each thread that has one."""


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
        self.adopted: list[tuple] | None = (
            None  # handles re-pointed while a segment is learned, and what they stood for
        )


class Recording:
    """One run's worth of operations: where it is in the trie, and what it holds of the outside world."""

    __slots__ = (
        "bindings", "buffers", "bytes", "checks", "count", "failed", "freed", "handles", "held", "hooks", "imported", "leaf_handles",
        "leaf_nodes", "ready", "regions", "root", "scalars", "shapes", "tail", "told", "variables",
    )  # fmt: skip

    def __init__(self) -> None:
        self.root = _trie_root()
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
        self.scalars: list[
            tuple[int, Callable[[], Any] | None]
        ] = []  # (position in buffers, where the value comes from)
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
_trie_size = 0
trie_resets = 0


def _trie_root() -> Root:
    global trie_resets
    if _trie_size > MAX_TRIE_NODES:
        _new_trie()
        trie_resets += 1
    return _root


def _new_trie() -> None:
    global _root, _trie_size
    old, _root, _trie_size = _root, Root(), 0
    forget(old)


def start_anew() -> None:
    """Forget the trie; this thread's recording, which is empty, starts in a new one."""
    _new_trie()
    STATE.recording = Recording()


journal: list[tuple[Handle, Buffer]] | None = None
"""While ``lezero.debug`` watches: handles written to, and the values they had."""

STATE = _State()
capturing = 0
"""How many captures are in progress, in all threads: modules look here first, since it is quicker than STATE."""
_counting = threading.Lock()


def count_capture(by: int) -> None:
    """One capture more (1) or less (-1) is in progress."""
    global capturing
    with _counting:
        capturing += by


tensor_class: type[Handle] = Handle  # set by lezero.tensor


def record(op: Op, operands: tuple, attrs: tuple) -> Any:
    """Apply `op`: the recorded result as a new Tensor."""
    state = STATE
    if state.autocast is not None and not state.in_rule:
        operands = state.autocast(op, operands)
    rec = state.recording
    imported = rec.imported
    nodes = []
    for t in operands:
        if isinstance(t, Handle):
            if t._rec is rec:
                nodes.append(t._node)
            else:
                nodes.append(imported.get(id(t)) or import_handle(rec, t))
        else:
            nodes.append(import_scalar(rec, t))
    inputs = tuple(nodes)
    node = rec.tail.next
    if (
        node is None
        or node.op is not op
        or node.inputs != inputs
        or node.grad_mode is not state.grad_mode
        or (not _same_attrs(rec, node.attrs, attrs) if op.shape_attrs else node.attrs != attrs)
        or (node.guards and not _guards_hold(rec, node))
    ):
        node = _branch(rec, op, inputs, attrs, state.grad_mode)
    rec.tail = node
    rec.count += 1
    t = tensor_class.__new__(tensor_class)
    t._rec = rec
    t._node = node
    rec.handles.append(ref(t))
    if (rec.count >= MAX_RECORDED or rec.bytes > MAX_RECORDED_BYTES) and state.capture is None and not state.in_rule:
        from lezero.runtime.run import run_now

        run_now()
    return t


def _same_attrs(rec: Recording, ours: tuple, theirs: tuple) -> bool:
    bindings = rec.bindings
    for a, b in zip(ours, theirs):
        if type(a) is tuple:
            if type(b) is not tuple or len(a) != len(b) or not _same_attrs(rec, a, b):
                return False
        elif type(a) is Dim:
            if type(b) is Dim and b.expr != a.expr:
                return False
            try:
                if dims.evaluate(a.expr, bindings) != b:
                    return False
            except IndexError:  # an extent this recording has not seen yet
                return False
        elif type(b) is Dim or a != b or a.__class__ is not b.__class__:
            return False
    return True


def _of_this_recording(rec: Recording, attrs: tuple) -> tuple:
    """Attributes with the extents of a recording that has ended as numbers: their symbols mean others by now."""
    if not any(type(a) is tuple or type(a) is Dim for a in attrs):
        return attrs
    return tuple(
        _of_this_recording(rec, a) if type(a) is tuple else int(a) if type(a) is Dim and _stale(rec, a) else a
        for a in attrs
    )


def _stale(rec: Recording, d: Dim) -> bool:
    try:
        return dims.evaluate(d.expr, rec.bindings) != int(d)
    except IndexError:
        return True


def _guards_hold(rec: Recording, node: Node) -> bool:
    return all(dims.holds(g, rec.bindings) for g in node.guards)


def _branch(rec: Recording, op: Op, inputs: tuple[Node, ...], attrs: tuple, grad_mode: bool) -> Node:
    """The continuation for an operation that is not what followed last time; made if there is none yet."""
    tail = rec.tail
    if op.shape_attrs:
        attrs = _of_this_recording(rec, attrs)
    for node in tail.branches or ():
        if (
            node.op is op
            and node.inputs == inputs
            and node.grad_mode is grad_mode
            and (_same_attrs(rec, node.attrs, attrs) if op.shape_attrs else node.attrs == attrs)
            and _guards_hold(rec, node)
        ):
            tail.next = node
            return node
    found = infer(rec.bindings, op, tuple([n.found.spec for n in inputs]), attrs)
    return extend(tail, found, inputs, grad_mode, tracks(found, inputs, grad_mode), STATE.site or find_site())


def tracks(found: Inferred, inputs: tuple[Node, ...], grad_mode: bool) -> bool:
    """Whether the gradient walk goes through what is `found` for these inputs."""
    if grad_mode and found.differentiable:
        for n in inputs:
            if n.tracks:
                return True
    return found.op.begins


def step(rec: Recording, op: Op, inputs: tuple[Node, ...], attrs: tuple) -> Node:
    """Apply `op` to nodes: for what nobody outside will see."""
    grad_mode = STATE.grad_mode
    found = infer(rec.bindings, op, tuple([n.found.spec for n in inputs]), attrs)
    rec.count += 1
    return advance(rec, found, inputs, grad_mode, tracks(found, inputs, grad_mode), STATE.site or find_site())


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
    global _trie_size
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
    _trie_size += 1
    return node


def on_line() -> switched:
    """Context: give everything recorded inside the user's line of now, looked up once."""
    return switched(STATE, "site", STATE.site or find_site())


_ours: dict[Any, bool] = {}  # code object -> whether it belongs to this package


def _user_site() -> tuple[str, int] | None:
    """The innermost line of code outside this package."""
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        inside = _ours.get(code)
        if inside is None:
            if len(_ours) > 20_000:
                _ours.clear()
            inside = _ours[code] = code.co_filename.startswith(_NOT_USERS)
        if not inside:
            return code.co_filename, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return None


find_site: Callable[[], tuple[str, int] | None] = _user_site
"""Where the site of a new node comes from: ``lz.explain`` adds the layer."""


def handle_of(rec: Recording, node: Node) -> Any:
    """A new Tensor standing for a node of a recording."""
    t = tensor_class.__new__(tensor_class)
    t._rec, t._node = rec, node
    rec.handles.append(ref(t))
    return t


# -- values from outside --------------------------------------------------------------------------------------


def import_handle(rec: Recording, t: Handle) -> Node:
    """The node of a handle that is not (or no longer) part of this recording: a leaf, or a view derived again."""
    buffer = value_elsewhere(rec, t)
    if buffer is None:
        if t._base is not None and t._view is not None:
            return _derive_again(rec, t)
        raise RuntimeError("a tensor without a value: it was made by a run that failed")
    tracks = t._requires_grad or t._history is not None
    if t._dynamic:
        node = _match_leaf(rec, buffer.array.shape, as_dtype(buffer.array.dtype), buffer.device, tracks, t._dynamic)
        rec.bytes += buffer.nbytes
    else:
        node = advance(rec, _leaf_record(t, buffer), (), True, tracks, None)
    if tracks:
        rec.variables[node] = t
    try:
        rec.leaf_handles.append(t)
        rec.leaf_nodes.append(node)
        rec.buffers.append(buffer)
    except BaseException:
        _keep_step(rec)
        raise
    rec.imported[id(t)] = node  # last: until then it is not there
    return node


def value_elsewhere(rec: Recording | None, t: Handle) -> Buffer | None:
    """The value of a handle that is not pending in `rec`; what it waits for is run.  None if it has none.

    Another thread may write to it meanwhile: then it is the value of before or of after.
    """
    while True:
        buffer, waits, node = t._buffer, t._rec, t._node
        if buffer is not None:
            return buffer
        if waits is not None and waits is not rec:
            from lezero.runtime.run import run_recording

            run_recording(waits, t)  # another thread recorded it, or it could not be computed before
        if t._buffer is None and t._rec is waits and t._node is node:
            return None


def _leaf_record(t: Handle, buffer: Buffer) -> Inferred:
    """What a leaf for `t` would be; quicker where its last value was of the same shape and dtype, as a parameter's is."""
    array = buffer.array
    last = t._node
    if last is not None:
        spec = last.found.spec
        leaf = spec.leaf
        if leaf is not None and array.dtype is spec.dtype.numpy and array.shape == spec.shape and not spec.symbolic:
            if buffer.device == spec.device:
                return leaf
    return leaf_of(array.shape, as_dtype(array.dtype), buffer.device)


def _match_leaf(rec: Recording, shape: tuple, dtype: DType, device: str, tracks: bool, dynamic: tuple) -> Node:
    tail = rec.tail
    node = tail.next
    if node is None or not _is_leaf_like(rec, node, shape, dtype, device, tracks, dynamic):
        for node in tail.branches or ():
            if _is_leaf_like(rec, node, shape, dtype, device, tracks, dynamic):
                tail.next = node
                break
        else:
            symbolic = tuple(rec.symbol(n) if i in dynamic else n for i, n in enumerate(shape))
            node = extend(tail, leaf_of(symbolic, dtype, device), (), True, tracks, None)
            node.static = not node.found.spec.symbolic
    rec.tail = node
    return node


def _is_leaf_like(
    rec: Recording, node: Node, shape: tuple, dtype: DType, device: str, tracks: bool, dynamic: tuple
) -> bool:
    if node.op is not LEAF or node.attrs != ("tensor",) or node.dtype is not dtype:
        return False
    if node.tracks is not tracks or node.device != device or len(node.shape) != len(shape):
        return False
    if node.static:
        return node.shape == shape and not any(shape[i] > 1 for i in dynamic)
    bindings = rec.bindings
    before = len(bindings)
    for axis, (d, n) in enumerate(zip(node.shape, shape)):
        if type(d) is Dim:
            k = d.expr[0][0][0][1]
            if axis in dynamic and n > 1:
                if k < len(bindings):
                    if bindings[k] == n:
                        continue
                # A captured call must come to the path it came to before, whatever was recorded in between: there equal
                # extents are one symbol, as they are where a leaf is made.
                elif k == len(bindings) and (STATE.capture is None or n not in bindings):
                    bindings.append(n)
                    continue
        elif d == n and not (axis in dynamic and n > 1):
            continue
        del bindings[before:]
        return False
    return True


def import_scalar(rec: Recording, value: Any) -> Node:
    """A Python number: a run-time input, or a constant inside a gradient rule."""
    value = as_number(value)
    if type(value) is Dim and _stale(rec, value):
        value = int(value)
    if type(value) is Dim or STATE.in_rule:
        return constant(rec, value)
    return scalar_leaf(rec, value, None)


_NUMBERS: tuple[type, ...] = (bool, int, float, complex)


def as_number(value: Any) -> Any:
    """A plain Python number or a Dim; TypeError for what is none."""
    kind = type(value)
    if kind is Dim or kind in _NUMBERS:
        return value
    import numpy as np

    if isinstance(value, (np.ndarray, np.generic)):
        if value.ndim == 0 and value.dtype.kind in "biufc":
            return value.item()
        raise TypeError("a NumPy array among tensors: convert it with lz.tensor(array) or lz.from_numpy(array)")
    for base in _NUMBERS:
        if isinstance(value, base):
            return base(value)
    raise TypeError(f"expected a Tensor or a number, got {kind_of(value)}")


def kind_of(value: Any) -> str:
    """The type of what is no tensor of ours, for an error; those of other libraries with what makes a tensor of them."""
    kind = type(value)
    if not hasattr(kind, "__dlpack__"):
        return kind.__name__
    library = kind.__module__.partition(".")[0]
    return f"{library}.{kind.__name__} (lz.tensor makes a tensor of it)"


def constant(rec: Recording, value: Any) -> Node:
    """A number that is part of the structure: from a gradient rule, or a symbolic extent used as a number."""
    return advance(rec, constant_of(value), (), True, False, None)


def scalar_leaf(
    rec: Recording, value: Any, get: Callable[[], Any] | None, weak: bool = True, dtype: DType | None = None
) -> Node:
    """A leaf for a Python number; `get` reads it again when a captured step is called."""
    import numpy as np

    dtype = dtype or number_dtype(value)
    try:
        buffer = Buffer(np.array(value, dtype.numpy))
    except OverflowError:
        raise OverflowError(f"{value} does not fit in {dtype.name}") from None
    node = advance(rec, scalar_of(dtype, weak), (), True, False, None)
    try:
        rec.scalars.append((len(rec.buffers), get))
        rec.leaf_handles.append(None)
        rec.leaf_nodes.append(node)
        rec.buffers.append(buffer)
    except BaseException:
        _keep_step(rec)
        raise
    return node


def _keep_step(rec: Recording) -> None:
    """Forget a leaf that an interrupt let only some of a recording's lists hear of."""
    lists: tuple[list, ...] = (rec.leaf_handles, rec.leaf_nodes, rec.buffers)
    known = min(map(len, lists))
    for parallel in lists:
        del parallel[known:]
    rec.scalars[:] = [(k, get) for k, get in rec.scalars if k < known]


# -- writing through handles ----------------------------------------------------------------------------------


def _derive_again(rec: Recording, t: Handle) -> Node:
    """A view whose base was written to: take it from the base as that is now."""
    op, attrs = t._view  # type: ignore[misc]
    fresh = record(op, (t._base,), attrs)
    adopt(t, fresh)
    return t._node


def adopt(t: Handle, value: Handle) -> None:
    """Make `t` stand for what `value` stands for, without telling anybody (see ``assign``)."""
    rec = STATE.recording
    if value._rec is not rec:  # a realised value: give it a node in this recording
        value = record(REGISTRY["identity"], (value,), ())
    point((t,), (value._node,))


def point(handles: Sequence[Handle], nodes: Sequence[Node]) -> None:
    """Make handles stand for nodes of the recording in progress, without telling anybody; all of them, even when an
    interrupt comes in between."""
    try:
        _point(handles, nodes)
    except BaseException:
        _point(handles, nodes)
        raise


def _point(handles: Sequence[Handle], nodes: Sequence[Node]) -> None:
    state = STATE
    rec, capture = state.recording, state.capture
    imported, made = rec.imported, rec.handles
    if state.adopted is not None:
        state.adopted.extend([(t, t._rec, t._node, t._buffer, t._shape, t._history) for t in handles])
    for t, node in zip(handles, nodes):
        imported.pop(id(t), None)
        if capture is not None:
            capture.before_write(t)
        if journal is not None and t._buffer is not None:
            journal.append((t, t._buffer))
        made.append(ref(t))  # first: an interrupt in between must not leave a handle that no run knows of
        t._rec, t._node, t._buffer, t._shape, t._history = rec, node, None, None, None
    if len(thread_states) > 1:
        tell_other_threads(handles)


def tell_other_threads(written: Iterable[Handle]) -> None:
    """Other threads that have used these handles in the recordings they are making use their new values from now on."""
    mine = STATE.recording
    for state in list(thread_states.values()):
        rec = state.get("recording")
        if rec is not None and rec is not mine:
            for t in written:
                rec.imported.pop(id(t), None)


def assign_together(handles: Sequence[Handle], values: Sequence[Handle]) -> None:
    """``assign`` for several handles: an interrupt leaves all of them written or none, where no view and no gradient has to
    hear of it."""
    for t in handles:
        if t._base is not None or t._views is not None or t._requires_grad:
            for each, value in zip(handles, values):
                assign(each, value)
            return
    rec = STATE.recording
    point(
        handles, [v._node if v._rec is rec else step(rec, REGISTRY["identity"], (_source(rec, v),), ()) for v in values]
    )


def _source(rec: Recording, value: Handle) -> Node:
    """The node of a handle in a recording."""
    return value._node if value._rec is rec else rec.imported.get(id(value)) or import_handle(rec, value)


def assign(t: Handle, value: Handle) -> None:
    """Point `t` at a new value of the same shape and dtype, and carry the write through to what it is a view of."""
    state = STATE
    if state.grad_mode:
        _refuse_leaves(t)
    if t._requires_grad:
        node = value._node if value._rec is state.recording else None
        if node is None or node.op.name != "variable":
            value = _as_variable(value)
    adopt(t, value)
    if t._requires_grad:
        state.recording.variables[t._node] = t
    stale_views(t)
    base = t._base
    came_from = t
    while base is not None:
        updated = _write_back(base, came_from)
        if base._requires_grad:
            updated = _as_variable(updated)
        adopt(base, updated)
        if base._requires_grad:
            state.recording.variables[base._node] = base
        stale_views(base, (id(came_from),))
        came_from, base = base, base._base


def _refuse_leaves(t: Handle) -> None:
    """A gradient cannot account for writes to leaves, except through ``detach`` and ``data``, which ask it not to."""
    written: Handle | None = t
    while written is not None:
        if written._requires_grad:
            what = "an in-place operation on" if written is t else "a write through a view of"
            raise RuntimeError(
                f"{what} a leaf that requires a gradient: wrap it in `with lz.no_grad():` "
                "(or work on its detach(), which shares the value)"
            )
        if written._view is not None and written._view[0].name == "detach":
            return
        written = written._base


def _as_variable(value: Handle) -> Handle:
    """A leaf boundary: gradients stop here (see ``variables``)."""
    rec = STATE.recording
    t = tensor_class.__new__(tensor_class)
    t._rec, t._node = rec, step(rec, REGISTRY["variable"], (_source(rec, value),), ())
    return t


def _write_back(base: Handle, view: Handle) -> Handle:
    """The base's new value after its view was written to."""
    op, attrs = view._view  # type: ignore[misc]
    rule = WRITE_BACK.get(op.name)
    if rule is None:
        raise RuntimeError(f"{op.name} gives a view that cannot be written through; write to the tensor itself")
    return rule(base, view, **dict(zip(op.attrs, attrs)))


WRITE_BACK: dict[str, Callable[..., Any]] = {}
"""View operation -> (base, view with its new value, **attrs) -> the base's new value; filled by lezero.tensor."""


def stale_views(t: Handle, fresh: Collection[int] = ()) -> None:
    """Views of `t`, except those with the ids `fresh`, must be derived again when next used."""
    if not t._views:
        return
    alive = []
    for r in t._views:
        view = r()
        if view is None:
            continue
        alive.append(r)
        if id(view) not in fresh:
            STATE.recording.imported.pop(id(view), None)
            view._rec = view._buffer = view._shape = view._history = None
            if len(thread_states) > 1:
                tell_other_threads((view,))
            stale_views(view, fresh)
    t._views = alive


def note_view(view: Handle, base: Handle, op: Op, attrs: tuple) -> None:
    """Remember that writing through `view` writes to `base`."""
    view._base, view._view = base, (op, attrs)
    if base._views is None:
        base._views = []
    elif len(base._views) > 16:
        base._views = [r for r in base._views if r() is not None]
    base._views.append(ref(view))
