"""What is measured while training, averaged over the samples of an epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lezero.tensor import Tensor

_MOST_UNREAD = 1024  # small tensors that a meter keeps alive

Metric = Callable[[Any, Any], Any]


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of samples whose largest output (along dimension 1) is the target class."""
    return (outputs.argmax(1) == targets).float().mean()


BUILT_IN: dict[str, Metric] = {"accuracy": accuracy}


def named(metrics: Mapping[str, Metric] | Sequence[str | Metric]) -> dict[str, Metric]:
    """Metrics by name, from a dict, or from a sequence of built-in names and functions."""
    if isinstance(metrics, Mapping):
        return dict(metrics)
    table = {}
    for metric in [metrics] if isinstance(metrics, str) else metrics:
        if isinstance(metric, str):
            if metric not in BUILT_IN:
                raise ValueError(f"there is no metric {metric!r}; built in: {', '.join(BUILT_IN)}, or give a function")
            table[metric] = BUILT_IN[metric]
        else:
            table[getattr(metric, "__name__", type(metric).__name__)] = metric
    return table


class Meter:
    """Sample-weighted means of named values.

    Values may be tensors: they are read when a mean is wanted and not when they are added, because reading waits for the
    run that computes them.
    """

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._unread: list[tuple[str, Any, int]] = []

    def add(self, values: Mapping[str, Any], samples: int) -> None:
        if len(self._unread) > _MOST_UNREAD:
            self._read(_MOST_UNREAD // 2)  # old ones, which ran long ago
        self._unread.extend((name, value, samples) for name, value in values.items())

    def _read(self, count: int) -> None:
        for name, value, samples in self._unread[:count]:
            self._sums[name] = self._sums.get(name, 0.0) + float(value) * samples
            self._counts[name] = self._counts.get(name, 0) + samples
        del self._unread[:count]

    def means(self) -> dict[str, float]:
        self._read(len(self._unread))
        return {name: total / self._counts[name] for name, total in self._sums.items()}

    def state_dict(self) -> dict[str, Any]:
        self.means()
        return {"sums": dict(self._sums), "counts": dict(self._counts)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._sums, self._counts = dict(state["sums"]), dict(state["counts"])
        self._unread.clear()
