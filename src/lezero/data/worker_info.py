"""What a dataset can learn about the worker process it is used in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class WorkerInfo:
    """One worker of a loader.

    Attributes
    ----------
    id : 0 … num_workers - 1
    num_workers : how many share the work
    seed : of the epoch, the same in all workers
    dataset : this process's copy
    """

    id: int
    num_workers: int
    seed: int
    dataset: Any


_info: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """The worker this code runs in; None in the main process."""
    return _info


def set_worker_info(info: WorkerInfo) -> None:
    global _info
    _info = info
