"""Orders in which a dataset is visited, resumable in the middle.

``state_dict()`` of the samplers here names the pass under way: its seed and how many indices it has given out.  After
``load_state_dict`` the next ``iter()`` continues that pass; the one after it starts afresh.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any

import numpy as np

from lezero.data.randomness import draw_seed, generator_from, generator_state, restore_generator


class Sampler:
    """Base class: ``__iter__`` gives indices (or, as a batch sampler, lists of them).

    A sampler that has a state of its own defines ``state_dict``/``load_state_dict`` so that a loader can resume it; one
    that does not is iterated again and the part already seen is skipped.
    """

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} must define __iter__()")

    def state_dict(self) -> dict[str, Any]:
        """Where the pass is, for ``load_state_dict``; nothing for a sampler without a state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the pass that ``state_dict`` described."""


class _Pass:
    """One pass over the indices: enough to make it again and continue it."""

    def __init__(self, seed: int | None, position: int = 0) -> None:
        self.seed, self.position = seed, position


class _Resumable(Sampler):
    """A sampler whose whole pass is a function of one seed."""

    generator: Any = None
    _needs_seed = True

    def __init__(self) -> None:
        self._pass: _Pass | None = None
        self._resume = False

    def _order(self, rng: np.random.Generator | None) -> np.ndarray | range:
        raise NotImplementedError

    def __iter__(self) -> Iterator[int]:
        # The seed is drawn here and not at the first index, so that state_dict() describes the pass from its start.
        if not self._resume or self._pass is None:
            self._pass = _Pass(draw_seed(self.generator) if self._needs_seed else None)
        self._resume = False
        return self._run(self._pass)

    def _run(self, this: _Pass) -> Iterator[int]:
        order = self._order(None if this.seed is None else generator_from(this.seed))
        for index in order[this.position :] if isinstance(order, range) else order[this.position :].tolist():
            this.position += 1
            yield index
        if self._pass is this:
            self._pass = None

    def state_dict(self) -> dict[str, Any]:
        now = self._pass
        return {
            "running": now is not None,
            "seed": None if now is None else now.seed,
            "position": 0 if now is None else now.position,
            "generator": generator_state(self.generator),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        restore_generator(self.generator, state["generator"])
        self._pass = _Pass(state["seed"], state["position"]) if state["running"] else None
        self._resume = state["running"]


class SequentialSampler(_Resumable):
    """0, 1, 2, …"""

    _needs_seed = False

    def __init__(self, data_source: Sized) -> None:
        super().__init__()
        self.data_source = data_source

    def _order(self, rng: np.random.Generator | None) -> range:
        return range(len(self.data_source))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(_Resumable):
    """The indices of `data_source` in a new random order on each pass; with `replacement`, `num_samples` independent draws."""

    def __init__(
        self, data_source: Sized, replacement: bool = False, num_samples: int | None = None, generator: Any = None
    ) -> None:
        super().__init__()
        if num_samples is not None and num_samples <= 0:
            raise ValueError(f"RandomSampler: num_samples must be positive, got {num_samples}")
        self.data_source, self.replacement, self.generator = data_source, replacement, generator
        self._num_samples = num_samples

    @property
    def num_samples(self) -> int:
        """How many indices a pass has."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def _order(self, rng: np.random.Generator | None) -> np.ndarray:
        assert rng is not None
        size, wanted = len(self.data_source), self.num_samples
        if self.replacement:
            return rng.integers(size, size=wanted)
        rounds = [rng.permutation(size) for _ in range(-(-wanted // size))] if size else []
        return np.concatenate(rounds)[:wanted] if rounds else np.empty(0, np.int64)

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(_Resumable):
    """The given indices in a new random order on each pass."""

    def __init__(self, indices: Sequence[int], generator: Any = None) -> None:
        super().__init__()
        self.indices, self.generator = np.asarray(indices, np.int64), generator

    def _order(self, rng: np.random.Generator | None) -> np.ndarray:
        assert rng is not None
        return rng.permutation(self.indices)

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(_Resumable):
    """`num_samples` indices, drawn with probabilities proportional to `weights`; none twice without `replacement`."""

    def __init__(
        self, weights: Sequence[float], num_samples: int, replacement: bool = True, generator: Any = None
    ) -> None:
        super().__init__()
        w = np.asarray(weights, np.float64)
        if w.ndim != 1 or not np.isfinite(w).all() or (w < 0).any() or not w.sum() > 0:
            raise ValueError("WeightedRandomSampler: weights must be one row of finite numbers >= 0, not all zero")
        if not replacement and num_samples > np.count_nonzero(w):
            raise ValueError(
                f"WeightedRandomSampler: {num_samples} different indices were asked for without replacement, but only "
                f"{np.count_nonzero(w)} weights are above zero"
            )
        self.weights, self.num_samples, self.replacement, self.generator = w, int(num_samples), replacement, generator

    def _order(self, rng: np.random.Generator | None) -> np.ndarray:
        assert rng is not None
        p = self.weights / self.weights.sum()
        return rng.choice(len(p), size=self.num_samples, replace=self.replacement, p=p)

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler):
    """Groups the indices of another sampler into lists of `batch_size`; the last may be shorter unless `drop_last`."""

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool = False) -> None:
        if isinstance(batch_size, bool) or not isinstance(batch_size, (int, np.integer)) or batch_size <= 0:
            raise ValueError(f"batch_size must be a positive integer, got {batch_size!r}")
        self.sampler, self.batch_size, self.drop_last = sampler, int(batch_size), bool(drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        return self._run(iter(self.sampler))

    def _run(self, indices: Iterator[int]) -> Iterator[list[int]]:
        batch: list[int] = []
        for index in indices:
            batch.append(index)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    def __len__(self) -> int:
        count = len(self.sampler)  # type: ignore[arg-type]
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def state_dict(self) -> dict[str, Any]:
        return self.sampler.state_dict() if hasattr(self.sampler, "state_dict") else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if hasattr(self.sampler, "load_state_dict"):
            self.sampler.load_state_dict(state)
