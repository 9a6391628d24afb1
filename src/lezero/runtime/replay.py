"""Segments of a recording that are followed in one go.

``backward()`` and an optimizer's ``step()`` record what follows from the trace so far: from the same trie node, with the same
handles in the same places, they record the same nodes.  The first time, :func:`replayed` runs the function and learns its
segment: where the trie path ends, which leaves it imported, which handles it pointed elsewhere.  When the same trie node is
reached again and everything it relied on is as it was, the recording jumps to the end of the segment.

A segment holds handles weakly, and is dropped when any of them is gone.  Those it starts from may be others each time
(gradients are): it knows them by their position.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any
from weakref import ref

import numpy as np

from lezero.graph import dim as dims
from lezero.graph.node import Node
from lezero.hal.buffer import Buffer
from lezero.runtime import writes
from lezero.runtime.recording import STATE, Handle, Recording, thread_states
from lezero.runtime.trie import Root
from lezero.runtime.writes import stale_views, tell_other_threads

MAX_SEGMENTS = 32
"""Segments remembered in one table."""
IMMUTABLE = (bool, int, float, complex, np.generic)
"""Numbers that stay what they are as long as they are the same object."""


class Segment:
    """What a function did to a recording (see the module)."""

    __slots__ = ("adopted", "count", "end", "guards", "imports", "places", "root", "scalars", "symbols")

    def __init__(
        self,
        root: Root,
        end: Node,
        count: int,
        places: list[Node | None],
        imports: list[tuple[Node, Any]],
        adopted: list[tuple[ref, Node]],
        guards: tuple,
        symbols: int,
    ):
        self.root, self.end, self.count, self.places, self.imports = root, end, count, places, imports
        self.adopted, self.guards, self.symbols = adopted, guards, symbols
        self.scalars: dict[Node, tuple[Any, Buffer]] = {}  # the last value of each number, and a buffer with it

    def fits(self, rec: Recording, reads: Sequence[Handle]) -> bool:
        """Whether the function would do exactly the same again."""
        if len(reads) != len(self.places) or len(rec.bindings) != self.symbols:
            return False
        imported = rec.imported
        for t, node in zip(reads, self.places):
            if (t._node if t._rec is rec else imported.get(id(t))) is not node:
                return False
            if node is None and (t._rec is not None or t._buffer is None):
                return False
        if len(set(map(id, reads))) != len(reads):
            return False
        for node, source in self.imports:
            if type(source) is ref:
                leaf = source()
            elif type(source) is int:
                leaf = reads[source]
            else:
                continue
            if leaf is None or leaf._rec is not None or leaf._buffer is None or id(leaf) in imported:
                return False
            array = leaf._buffer.array
            if array.shape != node.shape or array.dtype != node.dtype.numpy:
                return False
            if leaf._requires_grad is not node.tracks or leaf._history is not None:
                return False
        return all(dims.holds(g, rec.bindings) for g in self.guards)

    def follow(self, rec: Recording, reads: Sequence[Handle]) -> None:
        """Do it again, all of it even when an interrupt comes in between."""
        leaves, scalars = len(rec.leaf_nodes), len(rec.scalars)
        try:
            self._import(rec, reads)
        except BaseException:
            for parallel in (rec.leaf_nodes, rec.leaf_handles, rec.buffers):
                del parallel[leaves:]
            del rec.scalars[scalars:]
            self._import(rec, reads)
            self._adopt(rec)
            raise
        try:
            self._adopt(rec)
        except BaseException:
            self._adopt(rec)
            raise

    def _import(self, rec: Recording, reads: Sequence[Handle]) -> None:
        leaf_nodes, leaf_handles, buffers, imported = rec.leaf_nodes, rec.leaf_handles, rec.buffers, rec.imported
        for node, source in self.imports:
            leaf_nodes.append(node)
            if type(source) is ref or type(source) is int:
                t: Any = source() if type(source) is ref else reads[source]  # type: ignore[index]  # alive: `fits` has looked
                imported[id(t)] = node
                leaf_handles.append(t)
                buffers.append(t._buffer)
                if node.tracks:
                    rec.variables[node] = t
            else:
                rec.scalars.append((len(buffers), source))
                leaf_handles.append(None)
                value = source()
                known = self.scalars.get(node)
                if known is None or known[0] is not value or not isinstance(value, IMMUTABLE):
                    known = self.scalars[node] = value, Buffer(np.array(value, node.dtype.numpy))
                buffers.append(known[1])

    def _adopt(self, rec: Recording) -> None:
        handles, imported = rec.handles, rec.imported
        viewed: list[Handle] = []
        for r, node in self.adopted:
            t: Any = r()  # alive: what owns the table owns these
            imported.pop(id(t), None)
            handles.append(r)
            t._rec, t._node, t._buffer, t._shape, t._history = rec, node, None, None, None
            if t._requires_grad:
                rec.variables[node] = t
            if t._views:
                viewed.append(t)
        if viewed:
            written = {id(r()) for r, _ in self.adopted}
            for t in viewed:
                stale_views(t, written)
        if len(thread_states) > 1:
            tell_other_threads([t for r, _ in self.adopted if (t := r()) is not None])
        rec.tail, rec.count = self.end, rec.count + self.count


def replayed(table: dict[Any, Segment], key: Hashable, fn: Callable[[], Any], reads: Sequence[Handle]) -> Any:
    """Call `fn`, or follow what it recorded last time.

    table : where its segments are kept, owned by what `fn` belongs to (a segment refers to that, so nothing else may own it)
    key : everything besides the recording and `reads` that decides what `fn` does, identities of lasting handles included
    reads : handles it starts from, in an order of their own; only their places in the recording count
    Returns what `fn` returns, None when it was not called.
    """
    state = STATE
    rec = state.recording
    start = rec.tail
    segment = table.get((start, key))
    watched = state.capture is not None or writes.journal is not None  # they want to see every write
    if segment is not None and not watched and segment.fits(rec, reads):
        segment.follow(rec, reads)
        return None
    places = [t._node if t._rec is rec else rec.imported.get(id(t)) for t in reads]
    count, leaves, made, symbols = rec.count, len(rec.leaf_nodes), len(rec.handles), len(rec.bindings)
    scalars = len(rec.scalars)
    outer, state.adopted = state.adopted, []
    try:
        with dims.noting_guards() as guards:
            result = fn()
        adopted, state.adopted = state.adopted, outer
    except BaseException:
        if state.recording is rec:  # otherwise a run has been, and it settled what became of them
            _put_back(state.adopted)
        raise
    finally:
        state.adopted = outer
    if outer is not None:
        outer.extend(adopted)
    if state.recording is not rec or len(rec.bindings) != symbols:
        return result
    segment = _learn(rec, start, count, leaves, made, scalars, [t for t, *_ in adopted], places, reads, tuple(guards))
    if segment is not None:
        for known in [k for k, s in table.items() if s.root.forgotten]:
            del table[known]
        if len(table) >= MAX_SEGMENTS:
            table.clear()
        table[start, key] = segment
    return result


def _put_back(adopted: Sequence[tuple] | None) -> None:
    """Point handles at what they stood for: half a step is none."""
    for t, rec, node, buffer, shape, history in reversed(adopted or ()):
        STATE.recording.imported.pop(id(t), None)
        t._rec, t._node, t._buffer, t._shape, t._history = rec, node, buffer, shape, history
        stale_views(t)
    tell_other_threads([t for t, *_ in adopted or ()])


def _itself(value: Any) -> Any:
    return value


def _learn(
    rec: Recording,
    start: Node,
    count: int,
    leaves: int,
    made: int,
    scalars: int,
    adopted: list[Handle],
    places: list,
    reads: Sequence[Handle],
    guards: tuple,
) -> Segment | None:
    """The segment from `start` to here, or None if it left something behind that following it would not."""
    final = {id(t): t for t in adopted}
    given = {id(t): k for k, t in enumerate(reads)}
    if len(given) != len(reads):
        return None  # which of them is meant where would not be known
    for t in final.values():
        if t._rec is not rec:
            return None
    for r in rec.handles[made:]:
        h = r()
        if h is not None and id(h) not in final and h._rec is rec:
            return None
        del h
    gets = {position: get for position, get in rec.scalars[scalars:]}
    imports: list[tuple[Node, Any]] = []
    for k, (node, handle) in enumerate(zip(rec.leaf_nodes[leaves:], rec.leaf_handles[leaves:]), leaves):
        if handle is None:
            imports.append((node, gets[k] or partial(_itself, rec.buffers[k].array[()])))
        elif not node.static:
            return None
        else:
            imports.append((node, given.get(id(handle), ref(handle))))
    path = between(start, rec.tail)
    if path is None:
        return None
    node_guards = [g for node in path if node.guards for g in node.guards]
    ends = [(ref(t), t._node) for t in final.values()]
    return Segment(
        rec.root, rec.tail, rec.count - count, places, imports, ends, (*guards, *node_guards), len(rec.bindings)
    )


def between(start: Node, end: Node) -> list[Node] | None:
    """The trie nodes after `start` up to `end`: just recorded, so each is its predecessor's ``next``."""
    out: list[Node] = []
    node = start
    while node is not end:
        node = node.next  # type: ignore[assignment]
        if node is None or len(out) > 1_000_000:
            return None
        out.append(node)
    return out
