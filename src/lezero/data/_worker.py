"""A loader's worker process: ``python -m lezero.data._worker``, spoken to over its standard input and output.

What the user's dataset prints goes to standard error, since standard output carries the answers.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
import traceback
import warnings
from functools import partial
from typing import Any, BinaryIO

from lezero import knobs
from lezero.data import _wire as wire
from lezero.data import by_value
from lezero.data._shared import Block
from lezero.data.collate import default_collate, default_convert
from lezero.data.fetch import END, Fetcher
from lezero.data.randomness import batch_randomness, seed_process
from lezero.data.worker_info import WorkerInfo, set_worker_info

_GRACE_S = 5.0  # for the item under way, once the loader is gone
_SHARE_FROM = 16384  # smaller batches travel in the pipe: cheaper than a trip through a file mapping


def main() -> None:
    # Ctrl-C reaches the whole process group; the loader's process decides what it means, and closes our input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # it was blocked while we started
    source = os.fdopen(os.dup(0), "rb")
    sink = os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    with warnings.catch_warnings(action="ignore"):
        knobs.warn_of_unknown()  # which the loader's process does
    try:
        _Worker(source, sink).run()
    except (BrokenPipeError, EOFError):
        os._exit(1)  # the loader is gone, and what is left in the buffer has nowhere to go


class _Worker:
    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self.sink = sink
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.newest = wire.Epoch(-1, 0)
        self.setup: wire.Setup = wire.read_frame(source)
        threading.Thread(target=self._listen, args=(source,), daemon=True).start()

    def _listen(self, source: BinaryIO) -> None:
        """Take messages at once, so that a newer epoch is seen before old tasks are done, and so is the loader's end."""
        try:
            while True:
                message = wire.read_frame(source)
                if isinstance(message, wire.Epoch):
                    self.newest = message
                self.inbox.put(message)
        except (EOFError, OSError):
            self.newest = wire.Epoch(sys.maxsize, 0)
            self.inbox.put(None)
            time.sleep(_GRACE_S)
            os._exit(1)

    def run(self) -> None:
        setup = self.setup
        try:
            dataset, collate_fn, worker_init_fn = self._unpack()
            info = WorkerInfo(setup.worker, setup.workers, 0, dataset)
            set_worker_info(info)
            plain = {None: default_collate if setup.batched else default_convert}
            fetcher = Fetcher(dataset, plain.get(collate_fn, collate_fn), setup.batched, wire.Leaf)
            slots = [Block(*address) for address in setup.slots]
        except Exception as error:
            self._fail(-1, -1, "while receiving the dataset", error)
            return
        self._send(wire.Ready())
        stream = None
        greeted = False
        while (message := self.inbox.get()) is not None:
            if isinstance(message, wire.Epoch):
                info.seed = message.seed
                seed_process(message.seed, setup.worker)
                stream = None
                if worker_init_fn is not None and not greeted:
                    try:
                        worker_init_fn(setup.worker)
                    except Exception as error:
                        self._fail(message.epoch, -1, "in worker_init_fn", error)
                greeted = True
                continue
            if message.epoch != self.newest.epoch:
                continue
            try:
                if setup.stream and stream is None:
                    fetcher.context = "while starting the stream"
                    stream = iter(dataset)
                batch = self._make(fetcher, message, stream, info.seed)
                if batch is END:
                    self._send(wire.Exhausted(message.epoch, message.number))
                    continue
                packed = wire.dump(batch, partial(_room, slots[message.slot]), returning=True)
            except Exception as error:
                self._fail(message.epoch, message.number, fetcher.context, error)
            else:
                self._send(wire.Result(message.epoch, message.number, message.slot, packed))

    def _unpack(self) -> tuple[Any, Any, Any]:
        block = Block(*self.setup.cargo_block)
        # Private pages: the arrays of the dataset are shared with the other workers until this one writes to them.
        return wire.load(self.setup.cargo, lambda nbytes: block.view(nbytes, private=True), alias=True)

    def _make(self, fetcher: Fetcher, task: wire.Task, stream: Any, seed: int) -> Any:
        with batch_randomness(seed, task.number):
            if stream is not None:
                return fetcher.from_stream(stream, task.count, task.drop_last)
            seed_process(seed, task.number)
            return fetcher.from_indices(task.indices)

    def _fail(self, epoch: int, number: int, context: str, error: Exception) -> None:
        exception: bytes | None
        try:
            exception = by_value.dumps(error, returning=True)
        except Exception:
            exception = None
        kind, message = type(error).__name__, str(error)
        text = "".join(traceback.format_exception(error))
        self._send(wire.Failure(epoch, number, context, kind, message, text, exception))

    def _send(self, message: Any) -> None:
        wire.write_frame(self.sink, message)


def _room(block: Block, nbytes: int) -> memoryview | None:
    if nbytes < _SHARE_FROM or not block.reserve(nbytes):
        return None
    return block.view(nbytes)


if __name__ == "__main__":
    # Pickles name this module's classes through the package, not through __main__.
    from lezero.data._worker import main as run

    run()
