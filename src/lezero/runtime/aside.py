"""Recording aside: a function is called and recorded, nothing runs, and what it changed is put back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

from lezero.runtime import run
from lezero.runtime.capture import VALUE_IS_READ
from lezero.runtime.inputs import default_generator
from lezero.runtime.recording import STATE, Handle, Recording, count_capture
from lezero.runtime.trie import Root, forget


class ExplainError(RuntimeError):
    """The function reads a value, so it cannot be explained without running it."""


_KEPT = ("_rec", "_node", "_buffer", "_shape", "_history", "_grad", "_requires_grad", "_base", "_view", "_dynamic")


class _Watch:
    """``STATE.capture`` while a function is explained."""

    def __init__(self, name: str):
        self.name = name
        self.before: list[tuple[ref[Handle], list[Any]]] = []  # tensors the function changed, and what they were before
        self.others: list[Callable[[], None]] = []  # put back what is not in handles

    def refuse(self, why: str = VALUE_IS_READ) -> None:
        raise ExplainError(
            f"explain: inside {self.name}, {why}, which needs a run; explain the part before or after it"
        )

    def looked(self) -> None:
        pass  # what is there may be looked at: the function is called this once

    def saw(self, module: Any) -> None:
        pass

    def saw_optimizer(self, optimizer: Any) -> None:
        pass

    def uses_grad(self, t: Handle, read: bool = True) -> None:
        self._note(t)

    def _note(self, t: Handle) -> None:
        if t._rec is not STATE.recording:
            self.before.append((ref(t), [getattr(t, k) for k in _KEPT]))

    def before_write(self, t: Handle) -> None:
        while t._base is not None:
            t = t._base
        todo: list[Handle] = [t]  # with its views, which are no more what they were either
        while todo:
            t = todo.pop()
            self._note(t)
            todo += [view for r in t._views or () if (view := r()) is not None]


class recorded_only:
    """Record in a recording of its own; put back at the end what was changed.  Other threads go on with theirs meanwhile."""

    def __init__(self, name: str):
        self.name = name

    def __enter__(self) -> tuple[Recording, list[tuple[ref[Handle], list[Any]]]]:
        if STATE.capture is not None:
            STATE.capture.refuse("explain is called")
        run.run_now()
        self._generator = default_generator.get_state()
        self._outer, self.rec = STATE.recording, Recording()
        self.rec.root = self.rec.tail = Root()  # a trie of its own: nodes of another know no layers
        self._watch = _Watch(self.name)
        count_capture(1)
        STATE.recording, STATE.capture = self.rec, self._watch
        return self.rec, self._watch.before

    def __exit__(self, *error: Any) -> None:
        STATE.recording, STATE.capture = self._outer, None
        count_capture(-1)
        default_generator.set_state(self._generator)
        for at, values in reversed(self._watch.before):
            if (t := at()) is not None:
                for k, v in zip(_KEPT, values):
                    setattr(t, k, v)
        for r in self.rec.handles:
            t = r()
            if t is not None and t._rec is self.rec:
                t._rec = None
        for put_back in reversed(self._watch.others):
            put_back()
        run._release(self.rec)
        forget(self.rec.root)
