"""Where loading takes its random numbers from.

Every epoch of a loader has one seed, drawn from a generator; every batch has a generator of its own made from that seed
and the batch's number.  So a batch looks the same whichever process makes it, and an epoch can be resumed in its middle.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from lezero.runtime.inputs import default_generator

_batch: np.random.Generator | None = None
_outside: np.random.Generator | None = None


def draw_seed(generator: Any = None) -> int:
    """A seed below 2**63 from `generator`: LeZero's default one, a ``lz.Generator``, or a ``numpy.random.Generator``."""
    if isinstance(generator, np.random.Generator):
        return int(generator.integers(1 << 63))
    generator = generator or default_generator
    return int(_sequence(generator.initial_seed(), generator.next_draw()).generate_state(1, np.uint64)[0]) >> 1


def generator_state(generator: Any) -> Any:
    """What :func:`restore_generator` needs; None for the default generator, whose state is ``lz.get_rng_state()``."""
    if generator is None:
        return None
    return generator.bit_generator.state if isinstance(generator, np.random.Generator) else generator.get_state()


def restore_generator(generator: Any, state: Any) -> None:
    if generator is None or state is None:
        return
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


def generator_from(*seed: int) -> np.random.Generator:
    """A NumPy generator determined by the numbers given (Philox; the stream is NumPy's, fixed by its policy)."""
    return np.random.Generator(np.random.Philox(_sequence(*seed)))


def _sequence(*seed: int) -> np.random.SeedSequence:
    return np.random.SeedSequence([number % (1 << 64) for number in seed])


def batch_generator() -> np.random.Generator:
    """The generator of the batch being loaded; what random transforms use, and what a dataset may use.

    Outside a loader it is one per process, seeded from the default generator.
    """
    global _outside
    if _batch is not None:
        return _batch
    if _outside is None:
        _outside = generator_from(draw_seed())
    return _outside


@contextmanager
def batch_randomness(seed: int, number: int) -> Iterator[None]:
    """Make :func:`batch_generator` the one of batch `number`."""
    global _batch
    before, _batch = _batch, generator_from(seed, number)
    try:
        yield
    finally:
        _batch = before


def seed_process(*seed: int) -> None:
    """Seed everything a dataset might draw from in a worker: ``random``, ``numpy.random`` and LeZero."""
    state = _sequence(*seed).generate_state(4, np.uint32)
    value = int(state[0]) << 32 | int(state[1])
    random.seed(value)
    np.random.seed(state)
    default_generator.manual_seed(value >> 1)
