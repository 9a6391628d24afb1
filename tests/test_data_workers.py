"""Loading in worker processes: the same batches, every failure told, nothing left behind."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from lezero.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info
from lezero.data import _shared as shared
from lezero.data.randomness import batch_generator
from lezero.tensor import tensor

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="looks at processes the way POSIX has them")
MEMORY = Path("/dev/shm")


class Rows(Dataset):
    """Large enough rows that a batch travels in shared memory."""

    def __init__(self, n=20, width=5000):
        self.rows = np.arange(n * width, dtype=np.float32).reshape(n, width)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i], i


class Noise(Rows):
    def __getitem__(self, i):
        return np.array([i, batch_generator().random(), np.random.rand()])


class Stream(IterableDataset):
    """Every worker gives its share of 0 … n-1."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        info = get_worker_info()
        yield from range(self.n) if info is None else range(info.id, self.n, info.num_workers)


class Broken(Rows):
    def __init__(self, act):
        super().__init__()
        self.act = act

    def __getitem__(self, i):
        if i == 7:
            self.act()
        return i


class PickyError(Exception):
    """Cannot be made again from its message alone."""

    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


def same(left, right):
    assert len(left) == len(right)
    for a, b in zip(left, right):
        for x, y in zip(a, b):
            np.testing.assert_array_equal(x.numpy(), y.numpy())


def workers_alive():
    found = subprocess.run(
        ["ps", "-o", "args=", "--ppid", str(os.getpid())], capture_output=True, text=True, check=False
    )
    return sum("lezero.data._worker" in line for line in found.stdout.splitlines())


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    before = set(MEMORY.glob("lezero-*")) if MEMORY.is_dir() else set()
    threads = threading.active_count()
    yield
    deadline = time.monotonic() + 5
    while (workers_alive() or threading.active_count() > threads) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert workers_alive() == 0
    assert threading.active_count() <= threads
    if MEMORY.is_dir():
        assert set(MEMORY.glob("lezero-*")) <= before


# -- the same batches -----------------------------------------------------------------------------------------


def test_batches_and_their_order_do_not_depend_on_the_workers():
    def run(workers, kind):
        generator = np.random.default_rng(0)
        return list(DataLoader(kind(), batch_size=3, shuffle=True, generator=generator, num_workers=workers))

    same(run(0, Rows), run(2, Rows))
    assert len(run(1, Rows)) == 7
    for one, three in zip(run(1, Noise), run(3, Noise)):
        np.testing.assert_array_equal(one.numpy(), three.numpy())
    for here, there in zip(run(0, Noise), run(1, Noise)):
        np.testing.assert_array_equal(here.numpy()[:, :2], there.numpy()[:, :2])


def test_tensor_datasets_and_tensors_travel():
    data = TensorDataset(tensor(np.arange(40000.0).reshape(10, 4000)), np.arange(10))
    same(list(DataLoader(data, 4)), list(DataLoader(data, 4, num_workers=1)))


def test_streams_are_shared_out_and_every_item_comes_once():
    batches = list(DataLoader(Stream(11), batch_size=2, num_workers=3))
    assert sorted(i for b in batches for i in b.numpy().tolist()) == list(range(11))


def test_persistent_workers_stay_and_forget_an_epoch_that_was_broken_off():
    loader = DataLoader(Rows(), batch_size=2, num_workers=2, persistent_workers=True)
    first = [p.popen.pid for p in loader._workers().workers]
    for _ in loader:
        break
    assert [b[1].numpy()[0] for b in loader] == list(range(0, 20, 2))
    assert [p.popen.pid for p in loader._workers().workers] == first
    del loader


def test_an_epoch_resumes_in_its_middle_with_other_numbers_of_workers():
    def loader(workers):
        return DataLoader(Noise(), 3, shuffle=True, generator=np.random.default_rng(3), num_workers=workers)

    original = loader(2)
    batches = iter(original)
    next(batches), next(batches)
    state = original.state_dict()
    rest = [b.numpy() for b in batches]
    resumed = loader(1)
    resumed.load_state_dict(state)
    for want, got in zip(rest, resumed, strict=True):
        np.testing.assert_array_equal(want, got.numpy())


def test_worker_init_fn_runs_once_in_each_and_knows_the_worker():
    class Told(Rows):
        def __getitem__(self, i):
            return get_worker_info().dataset.told

    def tell(number):
        get_worker_info().dataset.told = 10 + number

    batches = list(DataLoader(Told(6), batch_size=1, num_workers=2, worker_init_fn=tell))
    assert [b.item() for b in batches] == [10, 11, 10, 11, 10, 11]
    assert get_worker_info() is None


def test_what_collate_fn_returns_stays_valid_when_slots_are_used_again():
    batches = list(
        DataLoader(Rows(), 2, num_workers=1, collate_fn=lambda items: {"x": np.stack([i[0] for i in items])})
    )
    for n, batch in enumerate(batches):
        assert isinstance(batch["x"], np.ndarray) and batch["x"][0, 0] == 2 * n * 5000
        batch["x"][:] = 0  # writable, and nobody else's


def test_a_full_shared_memory_falls_back_to_the_pipe(monkeypatch):
    monkeypatch.setattr(shared.Block, "reserve", lambda self, nbytes: False)
    same(list(DataLoader(Rows(), 4)), list(DataLoader(Rows(), 4, num_workers=1)))


# -- failures -------------------------------------------------------------------------------------------------


def test_an_exception_comes_back_with_its_type_traceback_and_item():
    def act():
        raise KeyError("no such picture")

    with pytest.raises(KeyError) as caught:
        list(DataLoader(Broken(act), batch_size=2, num_workers=2))
    note = caught.value.__notes__[0]
    assert "while loading item 7" in note and "in DataLoader worker 1" in note and "in act" in note


def test_a_stop_iteration_of_the_dataset_is_an_error_and_not_the_end():
    def act():
        raise StopIteration("early")

    with pytest.raises(RuntimeError, match="StopIteration"):
        list(DataLoader(Broken(act), batch_size=2, num_workers=1))


class Unwilling(Rows):
    def __setstate__(self, state):
        raise OSError("not here")


def test_a_dataset_that_fails_to_arrive_says_so():
    with pytest.raises(OSError, match="not here") as caught:
        list(DataLoader(Unwilling(), batch_size=2, num_workers=1))
    assert "while receiving the dataset" in caught.value.__notes__[0]


def test_an_exception_that_cannot_be_rebuilt_is_told_in_words():
    def act():
        raise PickyError("this", "that")

    with pytest.raises(RuntimeError, match="PickyError: this and that"):
        list(DataLoader(Broken(act), batch_size=2, num_workers=1))


def test_a_killed_worker_is_noticed_at_once():
    with pytest.raises(
        RuntimeError, match=r"worker 1 .*was killed by SIGKILL, which is what.*batch 3 \(items \[6, 7\]\)"
    ):
        list(DataLoader(Broken(lambda: os.kill(os.getpid(), signal.SIGKILL)), batch_size=2, num_workers=2))
    with pytest.raises(RuntimeError, match="ended by itself with exit code 5"):
        list(DataLoader(Broken(lambda: os._exit(5)), batch_size=2, num_workers=2))


def test_a_timeout_says_who_and_what():
    with pytest.raises(TimeoutError, match=r"has not delivered batch 3 within the timeout of 0\.5 s"):
        list(DataLoader(Broken(lambda: time.sleep(30)), batch_size=2, num_workers=1, timeout=0.5))


def test_after_an_error_persistent_workers_are_started_anew():
    flag = []

    def act():
        raise ValueError

    loader = DataLoader(Broken(act), batch_size=5, num_workers=1, persistent_workers=True)
    for _ in range(2):
        with pytest.raises(ValueError):
            list(loader)
        flag.append(workers_alive())
    assert flag == [0, 0]


@pytest.mark.parametrize("part", ["dataset", "collate_fn", "worker_init_fn"])
def test_what_cannot_travel_is_named(part):
    lock = threading.Lock()
    data, options = Rows(), {}
    if part == "dataset":
        data.lock = lock
    else:
        options = {part: lambda *_: lock}
    with pytest.raises(TypeError, match=f"the {part} cannot be sent to a worker process.*num_workers=0"):
        list(DataLoader(data, num_workers=1, **options))


# -- whole programs -------------------------------------------------------------------------------------------


def program(text, tmp_path, **options):
    script = tmp_path / "training.py"
    script.write_text(textwrap.dedent(text))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.Popen(
        [sys.executable, str(script)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def test_a_script_without_main_guard_runs_once(tmp_path):
    running = program(
        """
        from collections import namedtuple
        import numpy as np
        from lezero.data import DataLoader, Dataset
        print("top level")
        SCALE = 3
        Item = namedtuple("Item", "value name")

        class Mine(Dataset):
            def __len__(self): return 4
            def __getitem__(self, i): return Item(helper(i), str(i))

        def helper(i): return SCALE * i

        for batch in DataLoader(Mine(), batch_size=2, num_workers=2, collate_fn=lambda items: items):
            assert type(batch[0]) is Item
            print(batch)
        """,
        tmp_path,
    )
    out, err = running.communicate(timeout=60)
    assert err == ""
    assert out.splitlines() == [
        "top level",
        "[Item(value=0, name='0'), Item(value=3, name='1')]",
        "[Item(value=6, name='2'), Item(value=9, name='3')]",
    ]


LOOPS_FOR_EVER = """
    import os, sys, time
    from lezero.data import DataLoader, Dataset

    class Slow(Dataset):
        def __len__(self): return 1000
        def __getitem__(self, i):
            time.sleep(0.02)
            return i

    loader = DataLoader(Slow(), batch_size=2, num_workers=2, persistent_workers={persistent})
    for n, batch in enumerate(loader):
        if n == 0:
            print(*(w.popen.pid for w in {pool}.workers), flush=True)
        {body}
"""


def start_loop(tmp_path, persistent=True, body="pass", **options):
    pool = "loader._pool" if persistent else "iterator._pool"
    running = program(LOOPS_FOR_EVER.format(persistent=persistent, pool=pool, body=body), tmp_path, **options)
    return running, [int(pid) for pid in running.stdout.readline().split()]


def all_gone(pids, seconds=8.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(Path(f"/proc/{pid}").exists() and "Z" not in state(pid) for pid in pids):
            return True
        time.sleep(0.02)
    return False


def state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks into /proc")
@pytest.mark.parametrize("how", ["ctrl-c", "kill", "exit", "exception", "hard exit"])
def test_no_worker_outlives_the_program(how, tmp_path):
    bodies = {"exit": "sys.exit(3)", "exception": "1 / 0", "hard exit": "os._exit(4)"}
    running, pids = start_loop(tmp_path, body=bodies.get(how, "pass"), start_new_session=True)
    assert len(pids) == 2
    if how == "ctrl-c":
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does: to the whole group
    if how == "kill":
        running.kill()
    _, err = running.communicate(timeout=30)
    assert all_gone(pids)
    if how == "ctrl-c":
        assert err.count("Traceback") == 1 and "KeyboardInterrupt" in err
    if how in ("exit", "hard exit", "kill"):
        assert err == ""
    assert (
        running.returncode
        in {"ctrl-c": (-2, 130), "kill": (-9,), "exit": (3,), "exception": (1,), "hard exit": (4,)}[how]
    )


def test_a_fork_of_the_program_leaves_the_workers_alone():
    loader = DataLoader(Rows(), batch_size=2, num_workers=1, persistent_workers=True)
    batches = iter(loader)
    next(batches)
    child = os.fork()
    if child == 0:
        loader._pool.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert len(list(batches)) == 9
    del loader
