"""Bad input, as a new user would give it: one clear error that says what to do, and nothing lost."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import lezero as lz
from lezero import nn
from lezero.nn import functional as F

SOURCE = str(Path(lz.__file__).parents[1])


def python(*arguments, timeout=60, **environment):
    """A fresh process, with its own idea of the environment."""
    env = {**os.environ, "PYTHONPATH": SOURCE, "LEZERO_POISON_ARENA": "0", **environment}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout, check=False)


def lezero(*arguments, **environment):
    return python("-m", "lezero.cli", *arguments, **environment)


def one_line(done, code=2):
    """What a command said when it failed: one line, and no stack."""
    assert done.returncode == code, done
    assert "Traceback" not in done.stdout + done.stderr
    assert re.fullmatch(r"lezero: .+\n", done.stderr), done.stderr
    return done.stderr


class Training:
    """A small training in the middle of a step: whatever is tried next must not disturb it."""

    def __init__(self):
        lz.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        self.optimizer = lz.optim.AdamW(self.model.parameters(), lr=0.1)
        self.x, self.y = lz.randn(6, 3), lz.tensor([0, 1, 0, 1, 1, 0])
        self.step()
        self.loss = F.cross_entropy(self.model(self.x), self.y)  # pending while the mistake happens

    def step(self):
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(self.x), self.y).backward()
        self.optimizer.step()

    def finish(self):
        self.optimizer.zero_grad()
        self.loss.backward()
        self.optimizer.step()
        self.step()
        return {k: v.numpy().copy() for k, v in self.model.state_dict().items()}


@pytest.fixture(scope="module")
def undisturbed():
    return Training().finish()


@pytest.fixture
def unharmed(undisturbed):
    """Runs a mistake in the middle of a training, and compares what comes of the training."""

    def check(mistake, error, message):
        training = Training()
        with pytest.raises(error, match=message):
            mistake()
        for name, value in training.finish().items():
            np.testing.assert_array_equal(value, undisturbed[name], name)

    return check


def a(*shape):
    return lz.ones(*shape)


def endless():
    """A list that holds itself."""
    found = []
    found.append(found)
    return found


# -- shapes, dtypes, devices ------------------------------------------------------------------------------------------

MISTAKES = {
    "shapes that do not broadcast": (lambda: a(2, 3) + a(4, 5), ValueError, r"add: shapes \(2, 3\) and \(4, 5\)"),
    "a product that does not fit": (lambda: a(2, 3) @ a(4, 5), ValueError, "matmul: .* is 3, .* is 4"),
    "features of another layer": (lambda: nn.Linear(3, 4)(a(2, 5)), ValueError, r"linear: .*\(2, 5\)"),
    "channels of another layer": (lambda: nn.Conv2d(3, 4, 3)(a(2, 5, 8, 8)), ValueError, "conv2d: .*3 channels"),
    "an image smaller than the kernel": (lambda: nn.Conv2d(3, 4, 3)(a(2, 3, 2, 2)), ValueError, "pad more"),
    "integers into a layer": (lambda: nn.Linear(3, 4)(lz.tensor([[1, 2, 3]])), TypeError, "linear: .*convert with"),
    "two precisions": (lambda: nn.Linear(3, 4)(a(2, 3).double()), TypeError, r"float64.*\.to\(dtype\)"),
    "floating class indices": (lambda: F.cross_entropy(a(3, 4), a(3)), ValueError, "cross_entropy: .*class indices"),
    "too few targets": (lambda: F.cross_entropy(a(3, 4), lz.tensor([1])), ValueError, r"shape \(3,\) are needed"),
    "a mean of integers": (lambda: lz.tensor([1, 2]).mean(), TypeError, r"x\.float\(\)"),
    "a device that is not here": (lambda: lz.ones(3).to("cuda"), ValueError, "no device 'cuda'.*'cpu'"),
    "a dtype that is not here": (lambda: lz.zeros(3, dtype="float31"), TypeError, "'float31'.*float32"),
    "a dimension that is not there": (lambda: a(3, 4).sum(5), IndexError, "sum: dimension 5 .* 2 dimensions"),
    "a reshape to another size": (lambda: a(3, 4).reshape(5, 2), ValueError, "12 elements"),
    "an index out of range": (lambda: a(3, 4)[lz.tensor([9])], IndexError, "index 9 is out of range .* extent 3"),
    "an index of another kind": (lambda: a(3, 4)["a"], IndexError, "must be int, slice"),
    "a fractional size": (lambda: lz.zeros(3.5), TypeError, "are ints, got 3.5"),
    "a size that is text": (lambda: lz.zeros("3"), TypeError, "are ints, got '3'"),
    "a negative size": (lambda: lz.zeros(-3), ValueError, "negative"),
    "a negative identity": (lambda: lz.eye(-4), ValueError, "eye: n must be 0 or more"),
    "a split in nothing": (lambda: a(3).split(0), ValueError, "split: the size must be 1 or more"),
    "nothing to join": (lambda: lz.cat([]), ValueError, "cat: at least one"),
    "nothing to find the largest of": (lambda: lz.zeros(0).max(), ValueError, "max: .*empty"),
    "no tensor": (lambda: lz.tensor(None), TypeError, "tensor: a number.*got None"),
    "words": (lambda: lz.tensor(["a"]), TypeError, "not a dtype LeZero has"),
    "unequal rows": (lambda: lz.tensor([[1, 2], [3]]), ValueError, "not of equal lengths"),
    "an integer beyond 64 bits": (lambda: lz.tensor([2**70]), TypeError, "64 bits"),
    "a list that holds itself": (lambda: lz.tensor(endless()), ValueError, "nested"),
    "an array among a function's tensors": (
        lambda: F.linear(a(3), np.ones((2, 3))),
        TypeError,
        r"convert it with lz\.tensor",
    ),
    "an array of text before a tensor": (lambda: np.array(["a"]) + a(1), TypeError, "not a dtype LeZero has"),
    "gradients of integers": (lambda: lz.tensor([1], requires_grad=True), RuntimeError, "floating"),
    "a truth of many": (lambda: bool(a(3)), ValueError, "ambiguous.*any"),
    "a parameter that is none": (lambda: setattr(nn.Linear(2, 2), "weight", a(2, 2)), TypeError, "nn.Parameter"),
    "a state of another model": (
        lambda: nn.Linear(2, 2).load_state_dict({"weight": a(3, 3), "bias": a(2)}),
        RuntimeError,
        r"nothing was loaded(.|\n)*weight: .*\(2, 2\).*\(3, 3\)",
    ),
    "no parameters to train": (lambda: lz.optim.SGD([], lr=1), ValueError, "SGD: .*empty list"),
    "a layer of a negative size": (lambda: nn.Linear(-1, 2), ValueError, r"ints, 0 or more.*\(2, -1\)"),
    "a layer of a fractional size": (lambda: nn.Linear(2.5, 2), TypeError, r"Linear: in_features is an int, got 2\.5"),
    "a learning rate that is no number": (lambda: lz.optim.SGD([a(2)], lr=float("nan")), ValueError, "lr .*got nan"),
    "words written into a tensor": (lambda: a(3).__setitem__(0, "a"), TypeError, "in-place write: .*got str"),
    "no function to capture": (lambda: lz.jit(3), TypeError, "a function is needed"),
    "no function to differentiate": (lambda: lz.grad(a(1)), TypeError, "a function is needed, got Tensor"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_names_itself_and_the_step_goes_on(name, unharmed):
    unharmed(*MISTAKES[name])


def test_numbers_of_numpy_keep_gradients_on_either_side():
    x = lz.tensor([1.0, 2.0], requires_grad=True)
    for y in (np.sqrt(4.0) * x, x * np.float32(2), np.int64(2) * x):
        assert isinstance(y, lz.Tensor) and y.requires_grad and y.dtype is lz.float32
        np.testing.assert_array_equal(y.numpy(), [2, 4])


def test_arrays_in_network_order_are_taken():
    np.testing.assert_array_equal(lz.tensor(np.array([1, 256], ">i4")).numpy(), [1, 256])


@pytest.mark.parametrize("target", [7, -3])
def test_a_computed_label_that_is_no_class_gives_nan_instead_of_a_plausible_loss(target):
    x = lz.randn(3, 4, requires_grad=True)
    given = lz.tensor([0, 1, target])
    labels = given + 0
    losses = F.cross_entropy(x, labels), F.nll_loss(x, labels), F.cross_entropy(x, labels, label_smoothing=0.1)
    for loss in losses:
        assert np.isnan(loss.item())
    each = F.cross_entropy(x, given + 0, reduction="none")
    assert np.isnan(each.numpy()).tolist() == [False, False, True]
    each.sum().backward()
    assert np.isnan(x.grad.numpy()).all(1).tolist() == [False, False, True]
    with lz.debug.check_numerics(), pytest.raises(FloatingPointError, match="cross_entropy"):
        F.cross_entropy(x, given + 0).item()


# -- gradients --------------------------------------------------------------------------------------------------------


def twice(read=False, **options):
    y = (nn.Linear(2, 2)(a(3, 2)) ** 2).sum()
    if read:
        y.item()
    y.backward()
    y.backward()


def wrong_gradient(gradient):
    nn.Linear(2, 2)(a(3, 2)).backward(gradient)


def hooked(hook):
    x = lz.ones(2, requires_grad=True)
    y = x * 2
    y.register_hook(hook)
    y.sum().backward()


def hooked_forward(hook):
    layer = nn.Linear(2, 2)
    layer.register_forward_hook(hook)
    layer(a(1, 2))


class Doubled(lz.autograd.Function):
    answer = None

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return Doubled.answer(g)


def custom(answer):
    Doubled.answer = staticmethod(answer)
    Doubled.apply(lz.ones(3, requires_grad=True)).sum().backward()


def write_to_a_leaf(write):
    write(lz.ones(3, requires_grad=True))


def fail(*_):
    raise KeyError("the user's")


GRADIENT_MISTAKES = {
    "of many": (lambda: nn.Linear(2, 2)(a(3, 2)).backward(), RuntimeError, r"\(3, 2\).*\.mean\(\)"),
    "of nothing": (lambda: a(3).sum().backward(), RuntimeError, "does not depend on anything that requires"),
    "of another shape": (lambda: wrong_gradient(a(2)), RuntimeError, r"gradient has shape \(2,\), the tensor \(3, 2\)"),
    "of another kind": (lambda: wrong_gradient("x"), TypeError, "must be a tensor, got str"),
    "taken twice": (twice, RuntimeError, "retain_graph=True"),
    "taken twice, after a run": (lambda: twice(read=True), RuntimeError, "retain_graph=True"),
    "a hook that raises": (lambda: hooked(fail), KeyError, "the user's"),
    "a hook that answers nonsense": (lambda: hooked(lambda g: "no"), TypeError, "hook must return a tensor.*str"),
    "a hook that changes the shape": (
        lambda: hooked(lambda g: a(7)),
        ValueError,
        r"hook returned shape \(7,\).*\(2,\)",
    ),
    "a rule that raises": (lambda: custom(fail), KeyError, "the user's"),
    "a rule of another shape": (lambda: custom(lambda g: a(7)), RuntimeError, r"Doubled.*\(7,\).*\(3,\)"),
    "a rule with too many": (lambda: custom(lambda g: (g, g)), RuntimeError, "Doubled.* 2 gradients"),
    "a rule with an array": (lambda: custom(lambda g: g.numpy()), TypeError, "Doubled.*ndarray"),
    "a forward hook that raises": (
        lambda: hooked_forward(fail),
        KeyError,
        "the user's",
    ),
    "a write to a leaf": (lambda: write_to_a_leaf(lambda x: x.add_(1)), RuntimeError, "no_grad"),
    "a write to a leaf's slice": (lambda: write_to_a_leaf(lambda x: x[:1].add_(1)), RuntimeError, "no_grad"),
    "a write to a leaf's element": (lambda: write_to_a_leaf(lambda x: x.__setitem__(0, 1)), RuntimeError, "no_grad"),
}


@pytest.mark.parametrize("name", GRADIENT_MISTAKES)
def test_a_mistake_with_gradients_names_itself_and_the_step_goes_on(name, unharmed):
    unharmed(*GRADIENT_MISTAKES[name])


def test_a_captured_function_that_raised_can_be_called_again(unharmed):
    calls = []

    @lz.jit
    def f(x):
        calls.append(1)
        return fail() if len(calls) == 1 else x * 2

    unharmed(lambda: f(a(3)), KeyError, "the user's")
    np.testing.assert_array_equal(f(a(3)).numpy(), [2, 2, 2])


def test_nan_is_traced_to_the_operation_and_the_line(unharmed):
    def mistake():
        with lz.debug.check_numerics():
            x = lz.tensor([1.0, -1.0])
            (x.log() * 2).sum().item()  # the line

    unharmed(mistake, FloatingPointError, r"log(.|\n)*test_bad_input\.py")


def test_a_module_cannot_contain_itself():
    m = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"Sequential\.1: a module cannot contain itself"):
        m.append(m)
    inner = nn.Sequential(m)
    with pytest.raises(ValueError, match="directly or through others"):
        m.append(inner)
    assert len(m) == 1 and m(a(1, 2)).shape == (1, 2)


# -- sizes ------------------------------------------------------------------------------------------------------------

TOO_MUCH = {
    "a tensor": lambda: lz.zeros(2**45).numpy(),
    "a tensor beyond every address": lambda: lz.zeros(2**40, 2**40).numpy(),
    "an extent beyond 64 bits": lambda: lz.zeros(2**64).numpy(),
    "an outer sum": lambda: lz.realize(a(2**21, 1) + a(1, 2**21)),
    "an outer product": lambda: lz.realize(a(2**21, 1) @ a(1, 2**21)),
    "an expansion": lambda: a(1, 1, 1).expand(2**30, 2**30, 2**30).numpy(),
    "a padding": lambda: F.pad(a(3), (2**62, 2**62)).numpy(),
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_too_large_a_shape_is_a_memory_error_and_the_step_goes_on(name, unharmed):
    unharmed(TOO_MUCH[name], MemoryError, r"could not allocate \d+ bytes .*smaller|larger than meant")


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (0, 0, 0)])
def test_nothing_is_computed_on_without_complaint(shape):
    x = lz.zeros(*shape, requires_grad=True)
    y = F.softmax(x * 2 + 1, -1)
    assert y.numpy().shape == shape and y.sum().item() == 0 and np.isnan(x.mean().item())
    (y * y).sum().backward()
    assert x.grad.numpy().shape == shape and x.cumsum(0).numpy().shape == shape and not x.any().item()


def test_layers_take_an_empty_batch():
    for layer, shape in (
        (nn.Linear(3, 4), (0, 3)),
        (nn.Conv2d(3, 4, 3), (0, 3, 8, 8)),
        (nn.BatchNorm2d(3), (0, 3, 8, 8)),
    ):
        layer(lz.zeros(*shape)).sum().backward()
        assert all((p.grad.numpy() == 0).all() for p in layer.parameters())


def test_arguments_changed_afterwards_change_nothing():
    size, order, index, parts, array = [3, 4], [1, 0], np.array([0, 1]), [a(2), a(2)], np.zeros(2, "f4")
    x, y = lz.zeros(size), lz.zeros(3, 4).permute(order)
    z, joined, copied = lz.arange(4)[index], lz.cat(parts), lz.tensor(array) + 0
    size[0], order[:], index[:], array[:] = 9, [0, 1], 3, 5
    parts.clear()
    assert x.numpy().shape == (3, 4) and y.numpy().shape == (4, 3) and joined.numpy().shape == (4,)
    assert z.numpy().tolist() == [0, 1] and copied.numpy().tolist() == [0, 0]


def test_threads_make_mistakes_of_their_own():
    failed = []

    def work():
        try:
            training = Training()
            for k in range(8):
                if k % 3 == 1:
                    with pytest.raises(ValueError, match="linear"):
                        training.model(a(2, 9))
                training.step()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


# -- data -------------------------------------------------------------------------------------------------------------


class Broken(lz.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        if i == 5:
            raise KeyError(f"no picture {i}")
        return np.float32(i)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_that_raises_names_its_error_and_ends_its_workers(workers, unharmed):
    before = threading.active_count()

    def mistake():
        for _ in lz.data.DataLoader(Broken(), 4, num_workers=workers):
            pass

    unharmed(mistake, KeyError, "no picture 5")
    assert threading.active_count() <= before + 1


# -- the command line -------------------------------------------------------------------------------------------------

KNOBS = [
    ("LEZERO_NUM_THREADS", "0"), ("LEZERO_NUM_THREADS", "abc"), ("LEZERO_NUM_THREADS", "9" * 30), ("LEZERO_BACKEND", "foo"),
    ("LEZERO_CACHE_LIMIT", "x"), ("LEZERO_CACHE_LIMIT", "-1"), ("LEZERO_CACHE_DIR", "~nobody.at.all/x"), ("LEZERO_CPU", "foo"),
    ("LEZERO_COMPILE_WORKERS", "many"), ("LEZERO_PASSES", "-nosuch"),
]  # fmt: skip


@pytest.mark.parametrize("command", ["bench", "doctor"])
@pytest.mark.parametrize(("name", "value"), KNOBS)
def test_a_knob_with_a_value_it_cannot_have_is_one_line(name, value, command, tmp_path):
    environment = {"LEZERO_CACHE_DIR": str(tmp_path / "kernels"), name: value}  # empty, so that helpers are wanted
    said = one_line(lezero(command, **environment))
    assert f"{name}={value!r}" in said
    assert re.search("expected|installed: cpu, numpy|it can be one of generic|not one of -add_into", said)


@pytest.mark.parametrize("value", ["", " CPU ", "numpy"])
def test_a_backend_is_found_whatever_its_case(value):
    assert "passed" in lezero("doctor", LEZERO_BACKEND=value).stdout


def test_a_processor_that_llvm_does_not_know_is_one_line():
    text = (
        "import llvmlite.binding as llvm\n"
        "def missing(triple): raise RuntimeError('No available targets are compatible')\n"
        "llvm.Target.from_triple = missing\n"
        "from lezero.cli import main; main(['bench'])"
    )
    said = one_line(python("-c", text, LEZERO_CACHE_DIR=os.devnull + "/none"))
    assert "llvmlite" in said and "LEZERO_BACKEND=numpy" in said


def test_a_fault_of_ours_is_one_line_too_and_shows_its_stack_on_demand():
    text = "import lezero.cli.bench as b; b.bench.callback = lambda **_: 1 / 0\nfrom lezero.cli import main; main(['bench'])"
    assert "ZeroDivisionError" in (said := one_line(python("-c", text), 1)) and "LEZERO_TRACEBACK=1" in said
    assert "Traceback" in python("-c", text, LEZERO_TRACEBACK="1").stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--data", "nosuch"], "no folder 'nosuch'"),
        (["train", "--data", "."], "no train-images-idx3-ubyte"),
        (["train", "--lr", "nan"], "--lr: a finite number"),
        (["train", "--out", "."], "is a folder; name a file"),
        (["train", "--out", "nosuch/model.lzm"], "no folder 'nosuch'"),
        (["eval", "nosuch.lzm"], "no file 'nosuch.lzm'"),
    ],
)
def test_files_and_numbers_that_cannot_be_are_one_line(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in one_line(lezero(*arguments))


def test_a_training_that_diverges_stops_and_keeps_the_model_of_before(tmp_path):
    model = tmp_path / "model.lzm"
    model.write_bytes(b"a good model")
    done = lezero("train", "--lr", "1e30", "--epochs", "2", "--out", str(model), "--json")
    assert "smaller learning rate" in one_line(done)
    assert model.read_bytes() == b"a good model" and not list(tmp_path.glob("*-checkpoints/*.lzm"))


@pytest.mark.parametrize("damage", ["truncated", "altered"])
def test_a_damaged_model_is_refused_and_left_alone(damage, tmp_path):
    path = tmp_path / "model.lzm"
    lz.save({"weight": lz.ones(100)}, path)
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        del content[len(content) // 2 :]
    else:
        content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(str(path))):
        lz.load(path)
    assert str(path) in one_line(lezero("eval", str(path)))
    assert path.read_bytes() == content


# -- the kernel cache -------------------------------------------------------------------------------------------------

PROGRAM = """
import lezero as lz
x = lz.tensor([1.0, 2.0, 3.0], requires_grad=True)
(x.exp() * 2).sum().backward()
print([round(v, 3) for v in x.grad.tolist()], lz.runtime.stats()["kernels_compiled"])
"""
ANSWER = "[5.437, 14.778, 40.171]"


def run_with_cache(folder):
    done = python("-c", PROGRAM, LEZERO_CACHE_DIR=str(folder))
    assert done.returncode == 0 and done.stdout.startswith(ANSWER), done
    return int(done.stdout.split()[-1]), done.stderr


def test_a_cache_folder_that_cannot_be_is_one_warning(tmp_path):
    (tmp_path / "file").touch()
    compiled, said = run_with_cache(tmp_path / "file")
    assert compiled and said.count("Warning") == 1 and "LEZERO_CACHE_DIR" in said
    done = lezero("doctor", LEZERO_CACHE_DIR=str(tmp_path / "file"))
    assert done.returncode == 0 and re.fullmatch("lezero: warning: .*LEZERO_CACHE_DIR.*\n", done.stderr)


@pytest.mark.parametrize("options", ["size=8k", "ro"])
def test_a_cache_folder_that_is_full_or_read_only_is_one_warning(options, tmp_path):
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", tmp_path]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount")
    try:
        if "size" in options:
            (tmp_path / "other").write_bytes(bytes(6 << 10))
        compiled, said = run_with_cache(tmp_path)
        assert compiled and said.count("Warning") == 1 and "LEZERO_CACHE_DIR" in said
        assert "NOT WRITABLE" in lezero("doctor", LEZERO_CACHE_DIR=str(tmp_path)).stdout
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_damaged_kernels_are_compiled_again(tmp_path):
    count, _ = run_with_cache(tmp_path)
    assert run_with_cache(tmp_path) == (0, "")
    damages = [
        lambda b: b[: len(b) // 2],
        lambda b: b"",
        lambda b: b"junk" * 99,
        lambda b: b[:99] + bytes([b[99] ^ 8]) + b[100:],
    ]
    for damage in damages:
        for path in tmp_path.glob("*.o"):
            path.write_bytes(damage(path.read_bytes()))
        assert run_with_cache(tmp_path) == (count, "")
    assert run_with_cache(tmp_path) == (0, "")


def test_a_good_kernel_under_the_name_of_another_is_not_run(tmp_path):
    count, _ = run_with_cache(tmp_path)
    paths = sorted(tmp_path.glob("*.o"))
    contents = [path.read_bytes() for path in paths]
    for path, content in zip(paths, contents[1:] + contents[:1]):
        path.write_bytes(content)
    assert run_with_cache(tmp_path) == (count, "")


# -- Ctrl-C -----------------------------------------------------------------------------------------------------------

LOOP = """
import lezero as lz, numpy as np, sys
w = lz.nn.Parameter(lz.randn(700, 700) * 0.03)
optimizer = lz.optim.SGD([w], lr=1e-3)
def step():
    h = w
    for _ in range(12): h = h @ w
    (h * h).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
step()
print("ready", flush=True)
try:
    while True:
        step()
except KeyboardInterrupt:
    before = w.numpy().copy()
optimizer.zero_grad()
step()
print("goes on", bool(np.isfinite(w.numpy()).all() and (w.numpy() != before).any()))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of another kind")
@pytest.mark.parametrize("delay", [0.05, 0.33])
def test_ctrl_c_in_a_loop_leaves_a_session_that_goes_on(delay):
    env = {**os.environ, "PYTHONPATH": SOURCE}
    process = subprocess.Popen([sys.executable, "-c", LOOP], env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    threading.Timer(delay, process.send_signal, [signal.SIGINT]).start()
    assert process.communicate(timeout=30)[0] == "goes on True\n"


ONE_LONG_KERNEL = """
import threading, time, lezero as lz, _thread
a, b = lz.ones(4096, 1), lz.ones(1, 4_000_000)
lz.realize(a, b)
(a[:2] + b[:, :10]).exp().sum(1).numpy()
rows = (a + b).exp().sum(1)
threading.Timer(0.5, _thread.interrupt_main).start()
start = time.perf_counter()
try:
    rows.numpy()
except KeyboardInterrupt:
    print("caught", time.perf_counter() - start)
print((a * 2).sum().item())
"""


@pytest.mark.parametrize("threads", ["1", "2"])
def test_ctrl_c_is_heard_inside_one_long_kernel(threads):
    done = python("-c", ONE_LONG_KERNEL, LEZERO_NUM_THREADS=threads)  # 16 billion exponentials, were it to finish
    caught, total = done.stdout.splitlines()
    assert caught.startswith("caught") and float(caught.split()[1]) < 3 and total == "8192.0"


HOURS = """
import threading, time, lezero as lz, _thread
for long in (lambda: (lz.zeros(10**13) + 1).sum(), lambda: lz.rand(10**13).std(), lambda: lz.tensor([1, 2]).expand(10**13, 2).amax(0)):
    held = long()
    for read in (lambda: long().item(), lambda: held.numpy()):
        threading.Timer(0.4, _thread.interrupt_main).start()
        start = time.perf_counter()
        try:
            read()
        except KeyboardInterrupt:
            caught = time.perf_counter() - start
        print(caught - 0.4 < 1, (lz.ones(3) * 2).sum().item())
"""


def test_ctrl_c_is_heard_within_a_second_of_what_needs_hours_and_no_memory():
    """And nothing of it is computed with what comes next, whether it is held or not."""
    assert python("-c", HOURS, LEZERO_NUM_THREADS="2").stdout.splitlines() == ["True 6.0"] * 6


@pytest.mark.skipif(sys.platform == "win32", reason="signals of another kind")
def test_ctrl_c_in_the_quickstart_is_one_line_and_code_130(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "lezero.cli", "quickstart"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": SOURCE},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert "learns" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in said and "lezero: interrupted" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", ["foo", "-foo", "-decompose"])
def test_a_pass_there_is_not_cannot_be_left_out(monkeypatch, value):
    from lezero.passes.pipeline import switched_off

    monkeypatch.setenv("LEZERO_PASSES", value)
    with pytest.raises(ValueError, match=r"LEZERO_PASSES.*-remove_idle"):
        switched_off()


@pytest.mark.parametrize(
    "value", [" -recompute , -fuse ", "-recompute -fuse", ",-fuse,,-recompute,", "\t-fuse\n-recompute"]
)
def test_names_of_passes_may_have_blanks_between_them(monkeypatch, value):
    from lezero.passes.pipeline import switched_off

    monkeypatch.setenv("LEZERO_PASSES", value)
    assert switched_off() == {"recompute", "fuse"}


def test_an_index_that_is_no_row_of_the_table():
    with pytest.raises(IndexError, match=r"embedding: index 7 is not a row of a table of 5 rows"):
        F.embedding(lz.tensor([[0, 7]]), lz.ones(5, 3))


@pytest.mark.parametrize("loss", ["cross_entropy", "nll_loss"])
@pytest.mark.parametrize("label", [99, 4, -1])
def test_a_class_that_is_out_of_range(loss, label):
    from lezero.nn import functional as F

    x = lz.zeros(3, 4)
    with pytest.raises(IndexError, match=f"{loss}: class {label} is out of range: the input has 4 classes"):
        getattr(F, loss)(x, lz.tensor([1, label, 3]))
    assert getattr(F, loss)(x, lz.tensor([1, -100, 3])).item() >= 0
    assert getattr(F, loss)(x, lz.tensor([1, label, 3]), ignore_index=label).item() >= 0
    image = lz.zeros(2, 4, 5)
    with pytest.raises(IndexError, match=f"class {label} "):
        getattr(F, loss)(image, lz.tensor(np.full((2, 5), label)))


def test_a_negative_class_is_none_where_there_are_more_classes_than_its_type_counts():
    with pytest.raises(IndexError, match="class -60 is out of range: the input has 200 classes"):
        F.cross_entropy(lz.zeros(2, 200), lz.tensor(np.int8([1, -60])))
    assert F.cross_entropy(lz.zeros(2, 200), lz.tensor(np.uint8([1, 199]))).item() > 0


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8"])
def test_a_class_that_is_out_of_range_in_every_integer_type(dtype):
    x = lz.zeros(3, 4)
    for label in (4, 100, *([-1, -128] if dtype.startswith("i") else [])):
        labels = np.array([0, 9, 3, 9, label, 9], dtype)[::2]
        with pytest.raises(IndexError, match=f"class {label} is out of range"):
            F.cross_entropy(x, lz.from_numpy(labels))
    assert F.cross_entropy(x, lz.from_numpy(np.array([0, 9, 3, 9, 2, 9], dtype)[::2])).item() > 0


def test_a_misspelt_knob_is_warned_of_once():
    code = """if True:
        import lezero as lz
        from lezero.data import DataLoader
        for _ in range(2):
            lz.ones(3).sum().item()
            list(DataLoader([lz.ones(2)] * 4, num_workers=1))
        lz.device.set_backend("numpy")
    """
    done = python("-c", code, LEZERO_NUM_THREAD="1", LEZERO_QWXYZ="1", LEZERO_CPU="")
    assert done.stderr.count("LEZERO_NUM_THREAD changes nothing: did you mean LEZERO_NUM_THREADS?") == 1
    assert done.stderr.count("LEZERO_QWXYZ changes nothing: there are LEZERO_BACKEND, ") == 1


def test_every_knob_that_is_read_is_known():
    from lezero import knobs

    source = "".join(p.read_text(encoding="utf-8") for p in Path(lz.__file__).parent.rglob("*.py"))
    assert set(re.findall(r"""["'](LEZERO_[A-Z_]*[A-Z])["']""", source)) == set(knobs.KNOWN)
