"""The loader's side of its worker processes: starting, feeding, listening, and ending them."""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from lezero.data import _wire as wire
from lezero.data._shared import INHERITS_DESCRIPTORS, Block
from lezero.data.culprit import culprit

_GRACE_S = 1.0  # for the item under way when a pool is closed; then the worker is killed


class Pool:
    """`workers` processes with the same dataset, each with `prefetch` slots of shared memory for finished batches."""

    def __init__(
        self,
        cargo: tuple[Any, Any, Any],
        workers: int,
        prefetch: int,
        batched: bool,
        stream: bool,
    ) -> None:
        self.workers: list[_Process] = []
        self.prefetch = prefetch
        self.epoch = -1
        block = Block()
        self._end = weakref.finalize(self, _close, os.getpid(), self.workers)
        try:
            packed = _pack(cargo, block)
            for number in range(workers):
                process = _Process(number, prefetch, inherit=[block])
                self.workers.append(process)
                slots = [slot.address() for slot in process.slots]
                setup = wire.Setup(number, workers, packed, block.address(), slots, batched, stream)
                process.send(setup)
            for process in self.workers if not INHERITS_DESCRIPTORS else ():
                process.wait_until_open()
        except BaseException:
            self.close()
            raise
        finally:
            block.close()

    def close(self) -> None:
        """End the processes; harmless when done already."""
        self._end()

    @property
    def alive(self) -> bool:
        return self._end.alive

    def run(self, seed: int, tasks: Iterator[wire.Task], timeout: float) -> Iterator[Any]:
        """The batches of one epoch, in order; tasks are handed out `prefetch` ahead for every worker."""
        self.epoch += 1
        for worker in self.workers:
            worker.send(wire.Epoch(self.epoch, seed))
        waiting: deque[tuple[_Process, wire.Task]] = deque()

        def assign(worker: _Process, slot: int) -> None:
            task = next(tasks, None)
            if task is not None:
                task.epoch, task.slot = self.epoch, slot
                worker.send(task)
                waiting.append((worker, task))

        for slot in range(self.prefetch):
            for worker in self.workers:
                assign(worker, slot)
        ended: set[int] = set()
        while waiting:
            worker, task = waiting.popleft()
            answer = worker.receive(task, timeout)
            if isinstance(answer, wire.Exhausted):
                ended.add(worker.number)
            elif isinstance(answer, wire.Failure):
                raise _exception(answer, worker)
            if worker.number in ended:
                continue
            batch = wire.load(answer.batch, worker.slots[answer.slot].view)
            assign(worker, answer.slot)
            yield batch


class _Process:
    """One worker process, and the thread that listens to it."""

    def __init__(self, number: int, prefetch: int, inherit: list[Block]) -> None:
        self.number = number
        self.ready = False
        self.slots = [Block() for _ in range(prefetch)]
        self.answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        passed = [b.fd for b in (*self.slots, *inherit)] if INHERITS_DESCRIPTORS else []
        # -P keeps the current folder out of the worker's path; PYTHONPATH gives it this process's path instead.
        with _without_interrupts() as flags:
            self.popen = subprocess.Popen(
                [sys.executable, "-P", "-m", "lezero.data._worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=_environment(),
                pass_fds=passed,
                creationflags=flags,
            )
        threading.Thread(
            target=_listen, args=(self.popen.stdout, self.answers), name=f"lezero-loader-{number}", daemon=True
        ).start()

    def send(self, message: Any) -> None:
        with suppress(BrokenPipeError):  # it is dead, which receive() tells with its reason
            wire.write_frame(self.popen.stdin, message)  # type: ignore[arg-type]

    def receive(self, task: wire.Task, timeout: float) -> Any:
        """The answer to `task`; answers to tasks of epochs that were given up are dropped."""
        deadline = time.monotonic() + timeout
        while True:
            patience = max(0.0, deadline - time.monotonic()) if timeout and self.ready else None
            try:
                answer = self.answers.get(timeout=patience)
            except queue.Empty:
                raise TimeoutError(
                    f"DataLoader worker {self.number} (pid {self.popen.pid}) has not delivered batch {task.number} "
                    f"within the timeout of {timeout:g} s"
                ) from None
            if isinstance(answer, wire.Ready):
                self.ready = True
                deadline = time.monotonic() + timeout
                continue
            if answer is None:
                self.answers.put(None)
                raise RuntimeError(self._how_it_died(task))
            if isinstance(answer, wire.Failure) and answer.epoch == -1:
                return answer
            if answer.epoch == task.epoch:
                return answer

    def _how_it_died(self, task: wire.Task) -> str:
        with suppress(subprocess.TimeoutExpired):
            self.popen.wait(_GRACE_S)
        code = self.popen.returncode
        doing = f"batch {task.number}" + ("" if task.indices is None else f" (items {task.indices})")
        if code is not None and code < 0:
            name = signal.Signals(-code).name if -code in list(signal.Signals) else f"signal {-code}"
            hint = ", which is what the system does when memory runs out" if name == "SIGKILL" else ""
            how = f"was killed by {name}{hint}"
        else:
            how = f"ended by itself with exit code {code}"
        return f"DataLoader worker {self.number} (pid {self.popen.pid}) {how}; it was to deliver {doing}"

    def wait_until_open(self) -> None:
        """Windows: the file of the dataset can go only when the worker has it open, which its first message tells."""
        while self.popen.poll() is None and self.answers.empty():
            time.sleep(0.01)

    def ask_to_end(self) -> None:
        with suppress(OSError):
            self.popen.stdin.close()  # type: ignore[union-attr]

    def end(self, deadline: float) -> None:
        try:
            self.popen.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        for slot in self.slots:
            slot.close()


@contextmanager
def _without_interrupts() -> Iterator[int]:
    """Keep Ctrl-C, which the terminal sends to the whole process group, from a process started in here.

    A blocked signal stays blocked in the new process, until it is ready to ignore it; Windows has a flag for it.
    """
    if sys.platform == "win32":
        yield subprocess.CREATE_NEW_PROCESS_GROUP
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield 0
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _listen(source: Any, answers: queue.SimpleQueue[Any]) -> None:
    with suppress(EOFError, OSError, ValueError):
        while True:
            answers.put(wire.read_frame(source))
    answers.put(None)
    source.close()


def _close(pid: int, workers: list[_Process]) -> None:
    if os.getpid() != pid:
        return  # a fork of the process that the workers belong to
    for worker in workers:
        worker.ask_to_end()
    deadline = time.monotonic() + _GRACE_S
    for worker in workers:
        worker.end(deadline)
    workers.clear()


def _pack(cargo: tuple[Any, Any, Any], block: Block) -> wire.Packed:
    def place(nbytes: int) -> memoryview | None:
        return block.view(nbytes) if block.reserve(nbytes) else None

    try:
        return wire.dump(cargo, place)
    except Exception as error:
        names = ("dataset", "collate_fn", "worker_init_fn")
        name, part = next(((n, p) for n, p in zip(names, cargo) if not _travels(p)), (names[0], cargo[0]))
        path, reason = culprit(part, name, _travels)
        raise TypeError(
            f"the {name} cannot be sent to a worker process, because of {path}, a {type(reason).__qualname__} "
            f"({type(error).__name__}: {error}). Open files, locks, database connections and generators cannot travel: "
            "create them on first use inside the worker (or in worker_init_fn), or use num_workers=0"
        ) from error


def _travels(part: Any) -> bool:
    try:
        wire.dump(part, lambda _: None)
    except Exception:
        return False
    return True


def _environment() -> dict[str, str]:
    """One thread for each worker's native code, and this process's import path."""
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    threads = dict.fromkeys(("LEZERO_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**os.environ, **threads, "PYTHONPATH": path}


def _exception(failure: wire.Failure, worker: _Process) -> BaseException:
    """The worker's exception, as it was if it can travel, with where it happened."""
    error: BaseException | None = None
    if failure.exception is not None:
        with suppress(Exception):
            error = pickle.loads(failure.exception)
    if not isinstance(error, BaseException) or isinstance(error, StopIteration):  # which would end the loop in silence
        error = RuntimeError(f"{failure.kind}: {failure.message}")
    error.add_note(
        f"in DataLoader worker {worker.number} (pid {worker.popen.pid}) {failure.context}:\n{failure.traceback}"
    )
    return error
