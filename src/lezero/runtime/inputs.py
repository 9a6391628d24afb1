"""Run-time inputs: numbers that are read when a run starts and are never part of a key."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from weakref import ref

import numpy as np

from lezero.graph.dtype import DType, int64
from lezero.runtime import recorder
from lezero.runtime.leaves import scalar_leaf
from lezero.runtime.recording import STATE


def scalar_input(get: Callable[[], float], dtype: DType | None = None) -> Any:
    """A 0-d Tensor whose value is ``get()``, read now and again at every call of a captured step.

    Without `dtype` it counts as a Python number where dtypes are promoted.
    """
    rec = STATE.recording
    t = recorder.tensor_class.__new__(recorder.tensor_class)
    t._node = scalar_leaf(rec, get(), get, weak=dtype is None, dtype=dtype)
    t._rec = rec
    t._weak = dtype is None
    rec.handles.append(ref(t))
    return t


class Generator:
    """A stream of random numbers: a seed, and how many draws have been made.

    Draw n uses the counter-based generator Philox with key (seed) and counter (n, element), so a stream can be put back to
    any point by its state alone.
    """

    def __init__(self, seed: int | None = None):
        self._lock = threading.Lock()
        self.manual_seed(int.from_bytes(np.random.default_rng().bytes(7), "little") if seed is None else seed)

    def manual_seed(self, seed: int) -> Generator:
        """Start the stream of `seed` (an int; taken modulo 2**64)."""
        if not isinstance(seed, (int, np.integer)) or isinstance(seed, bool):
            raise TypeError(f"manual_seed: an int is needed, got {type(seed).__name__}")
        seed = int(seed) & (2**64 - 1)
        self._seed = seed - 2**64 if seed >= 2**63 else seed
        self._draws = 0
        return self

    def initial_seed(self) -> int:
        """The seed it started from."""
        return self._seed

    def get_state(self) -> dict[str, int]:
        """Where it is in its stream, for ``set_state``."""
        return {"seed": self._seed, "draws": self._draws}

    def set_state(self, state: dict[str, int]) -> None:
        """Go on from where ``get_state`` was called."""
        self._seed, self._draws = int(state["seed"]), int(state["draws"])

    def next_draw(self) -> int:
        """The number of this draw, from 0; the next one is another."""
        with self._lock:
            self._draws += 1
            return self._draws - 1


default_generator = Generator(0)


def random_key(generator: Generator | None = None) -> tuple[Any, Any]:
    """(seed, offset) operands for a random operation: 0-d int64 tensors, with a fresh offset at each call."""
    g = generator or default_generator
    return scalar_input(lambda: g._seed, int64), scalar_input(g.next_draw, int64)
