"""DataLoader: batches of a dataset, made here or in worker processes, resumable in the middle of an epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count, islice
from typing import Any

from lezero.data import _pool
from lezero.data import _wire as wire
from lezero.data.collate import default_collate, default_convert
from lezero.data.dataset import IterableDataset
from lezero.data.fetch import END, Fetcher
from lezero.data.randomness import batch_randomness, draw_seed, generator_state, restore_generator
from lezero.data.sampler import BatchSampler, RandomSampler, SequentialSampler
from lezero.misspelt import SpeltArguments
from lezero.tensor import tensor


def _positive(value: Any) -> bool:
    """Whether it is a whole number above 0, of whatever type."""
    return hasattr(value, "__int__") and value == int(value) and value >= 1


class DataLoader(SpeltArguments):
    """Iterate over a dataset in batches.

    Parameters
    ----------
    dataset : Dataset or IterableDataset
    batch_size : int or None
        Items in a batch; None gives single items, converted but not stacked.
    shuffle : bool
        A new random order on each epoch.
    sampler, batch_sampler : iterables of indices, or of lists of indices; instead of `shuffle` (and `batch_size`)
    num_workers : int
        Processes that load ahead; 0 loads in this process.  Workers are fresh Python processes that get the dataset,
        `collate_fn` and `worker_init_fn` by pickle (those defined in ``__main__`` by value): the script that made the
        loader is not run again and needs no main guard.  What a dataset prints there goes to standard error.
    collate_fn : callable(list of items) -> batch
    drop_last : leave out a last batch that is not full
    timeout : seconds to wait for a batch from a worker; 0 waits for ever
    worker_init_fn : callable(worker number), called once in each worker, after seeding
    generator : Generator
        Where orders and seeds come from: a ``lz.Generator`` or ``numpy.random.Generator``; the default one otherwise.
    prefetch_factor : batches that each worker prepares ahead; 2 otherwise
    persistent_workers : keep the workers between epochs
    pin_memory : accepted for portability, and without effect: there is no device yet that memory would be pinned for

    Notes
    -----
    ``random``, ``numpy.random`` and LeZero are seeded in a worker before each batch, from the epoch's seed and the batch's
    number, so that batches do not depend on the number of workers or on where an epoch was resumed.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool = False,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[list[int]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        generator: Any = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
    ) -> None:
        self.dataset, self.num_workers, self.timeout = dataset, num_workers, timeout
        self.worker_init_fn, self.generator, self.persistent_workers = worker_init_fn, generator, persistent_workers
        self.prefetch_factor = 2 if prefetch_factor is None else prefetch_factor
        self.stream = isinstance(dataset, IterableDataset)
        self.drop_last = drop_last
        self._check(batch_size, shuffle, sampler, batch_sampler, prefetch_factor)
        if batch_sampler is not None:
            batch_size = None
        self.batch_size, self.batch_sampler = batch_size, batch_sampler
        self.batched = batch_size is not None or batch_sampler is not None
        if not self.stream and batch_sampler is None:
            if sampler is None:
                sampler = RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)
            if batch_size is not None:
                self.batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.sampler = sampler
        self.collate_fn = collate_fn or (default_collate if self.batched else default_convert)
        self._fetcher = Fetcher(dataset, self.collate_fn, self.batched, tensor)
        self._pool: _pool.Pool | None = None
        self._progress = _Progress()
        self._resume: dict[str, Any] | None = None

    def _check(self, batch_size: Any, shuffle: bool, sampler: Any, batch_sampler: Any, prefetch: Any) -> None:
        if not isinstance(self.num_workers, int) or self.num_workers < 0:
            raise ValueError(f"DataLoader: num_workers must be 0 or more, got {self.num_workers!r}")
        if self.timeout < 0:
            raise ValueError(f"DataLoader: timeout must be 0 (wait for ever) or more seconds, got {self.timeout!r}")
        if self.prefetch_factor < 1:
            raise ValueError(f"DataLoader: prefetch_factor must be 1 or more, got {self.prefetch_factor!r}")
        if self.num_workers == 0 and (prefetch is not None or self.persistent_workers):
            raise ValueError("DataLoader: prefetch_factor and persistent_workers need num_workers > 0")
        if batch_size is not None and (isinstance(batch_size, bool) or not _positive(batch_size)):
            raise ValueError(f"DataLoader: batch_size must be a positive integer or None, got {batch_size!r}")
        if batch_sampler is not None and (
            batch_size not in (1, None) or shuffle or sampler is not None or self.drop_last
        ):
            raise ValueError(
                "DataLoader: batch_sampler decides batch_size, shuffle, sampler and drop_last; leave them out"
            )
        if sampler is not None and shuffle:
            raise ValueError("DataLoader: a sampler decides the order; leave shuffle out")
        if batch_size is None and batch_sampler is None and self.drop_last:
            raise ValueError("DataLoader: drop_last needs a batch_size")
        if self.stream and (shuffle or sampler is not None or batch_sampler is not None):
            raise ValueError("DataLoader: an IterableDataset decides its own order; shuffle and samplers do not apply")
        if not self.stream and not hasattr(self.dataset, "__getitem__"):
            raise TypeError(
                f"DataLoader: {type(self.dataset).__name__} has no __getitem__; a dataset has __getitem__ and __len__, or "
                "derives from lz.data.IterableDataset"
            )

    def __len__(self) -> int:
        """Batches in an epoch; for a stream, as its ``__len__`` promises."""
        if not self.stream:
            return len(self.batch_sampler if self.batched else self.sampler)  # type: ignore[arg-type]
        items = len(self.dataset)
        if self.batch_size is None:
            return items
        return items // self.batch_size if self.drop_last else -(-items // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        progress = self._begin()
        self._progress = progress
        if self.num_workers == 0:
            return _Batches(progress, self._here(progress), None)
        pool = self._workers()
        batches = pool.run(progress.seed, self._tasks(progress), self.timeout)
        if self.stream:
            batches = islice(batches, progress.delivered, None)
        return _Batches(progress, batches, None if self.persistent_workers else pool, self._forget_pool)

    def _begin(self) -> _Progress:
        """A new epoch, or the rest of the one that a loaded state was in."""
        resumed, self._resume = self._resume, None
        source = self.batch_sampler if self.batched else self.sampler
        if resumed is None or not resumed["running"]:
            seed, delivered = draw_seed(self.generator), 0
        else:
            seed, delivered = resumed["seed"], resumed["delivered"]
        progress = _Progress(True, seed, delivered)
        if not self.stream:
            progress.indices = iter(source)  # type: ignore[arg-type]
            progress.sampler = _state(source)
            next(islice(progress.indices, delivered, delivered), None)
        return progress

    def _tasks(self, progress: _Progress) -> Iterator[wire.Task]:
        if self.stream:
            for number in count():
                yield wire.Task(0, number, 0, None, self.batch_size, self.drop_last)
        for number, indices in enumerate(progress.indices, progress.delivered):
            yield wire.Task(0, number, 0, indices)

    def _here(self, progress: _Progress) -> Iterator[Any]:
        """The batches, made in this process."""
        fetcher = self._fetcher
        try:
            if self.stream:
                stream = iter(self.dataset)
                for number in count():
                    with batch_randomness(progress.seed, number):
                        batch = fetcher.from_stream(stream, self.batch_size, self.drop_last)
                    if batch is END:
                        return
                    if number >= progress.delivered:
                        yield batch
            for number, indices in enumerate(progress.indices, progress.delivered):
                with batch_randomness(progress.seed, number):
                    batch = fetcher.from_indices(indices)
                yield batch
        except Exception as error:
            error.add_note(f"in DataLoader {fetcher.context}")
            raise

    def _workers(self) -> _pool.Pool:
        if self._pool is not None and self._pool.alive:
            return self._pool
        default = self.collate_fn in (default_collate, default_convert)
        cargo = (self.dataset, None if default else self.collate_fn, self.worker_init_fn)
        pool = _pool.Pool(cargo, self.num_workers, self.prefetch_factor, self.batched, self.stream)
        if self.persistent_workers:
            self._pool = pool
        return pool

    def _forget_pool(self) -> None:
        """After an error in a persistent worker: the next epoch starts new ones."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def state_dict(self) -> dict[str, Any]:
        """Where the epoch under way stands: what :meth:`load_state_dict` continues, batch for batch.

        For a stream the batches already delivered are made again and dropped.
        """
        p = self._progress
        source = self.batch_sampler if self.batched else self.sampler
        return {
            "running": p.running,
            "seed": p.seed,
            "delivered": p.delivered,
            "sampler": p.sampler if p.running else _state(source),
            "generator": generator_state(self.generator),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next ``iter()`` continue where ``state_dict()`` was taken."""
        missing = {"running", "seed", "delivered", "sampler", "generator"} - state.keys()
        if missing:
            raise ValueError(f"this is not a loader's state: it lacks {', '.join(sorted(missing))}")
        source: Any = self.batch_sampler if self.batched else self.sampler
        if hasattr(source, "load_state_dict") and state["sampler"]:
            source.load_state_dict(state["sampler"])
        restore_generator(self.generator, state["generator"])  # after the sampler, which may draw from the same one
        self._resume = dict(state)
        self._progress = _Progress(state["running"], state["seed"], state["delivered"], state["sampler"])


class _Progress:
    """One epoch of a loader: its seed, how many batches were delivered, and its sampler's state at the start."""

    def __init__(self, running: bool = False, seed: int = 0, delivered: int = 0, sampler: Any = None) -> None:
        self.running, self.seed, self.delivered, self.sampler = running, seed, delivered, sampler
        self.indices: Iterator[Any] = iter(())


class _Batches:
    """The iterator over an epoch; closes the pool that belongs to it when it ends, fails, or is let go."""

    def __init__(
        self, progress: _Progress, batches: Iterator[Any], pool: Any, on_error: Callable[[], None] = lambda: None
    ) -> None:
        self._progress, self._batches, self._pool, self._on_error = progress, batches, pool, on_error

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            self._progress.running, self._progress.delivered = False, 0
            self._close()
            raise
        except BaseException:
            self._close()
            self._on_error()
            raise
        self._progress.delivered += 1
        return batch

    def _close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def __del__(self) -> None:
        if getattr(self, "_pool", None) is not None:
            self._pool.close()


def _state(sampler: Any) -> Any:
    return sampler.state_dict() if hasattr(sampler, "state_dict") else {}
