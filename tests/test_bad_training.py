"""Bad input of a training: limits, precisions, scaling, states and checkpoints; what was good stays good."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import lezero as lz
import lezero.nn.functional as F
from lezero import amp, nn, optim

SOURCE = str(Path(lz.__file__).parents[1])
posix = pytest.mark.skipif(os.name == "nt", reason="POSIX signals and limits")


def training(features=4):
    net = nn.Sequential(nn.Linear(3, features), nn.ReLU(), nn.Linear(features, 2))
    opt = optim.AdamW(net.parameters(), lr=0.1)
    F.cross_entropy(net(lz.ones(5, 3)), lz.zeros(5, dtype="int64")).backward()
    opt.step()
    return net, opt


def values(state):
    return {
        (k, name): v.numpy().copy()
        for k, entries in state.items()
        for name, v in entries.items()
        if isinstance(v, lz.Tensor)
    }


@pytest.mark.parametrize(
    "dtype, error", [("float64", "bfloat16 or float16, got float64"), ("int8", "got int8"), ("float8", "float8")]
)
def test_autocast_to_another_dtype_names_those_there_are(dtype, error):
    before = amp.is_autocast_enabled()
    with pytest.raises(TypeError, match=error), lz.autocast("cpu", dtype=dtype):
        pass
    assert amp.is_autocast_enabled() == before
    with pytest.raises(ValueError, match="no device 'cuda' here; the backend in use has cpu"):
        lz.autocast("cuda", dtype="float16")


def test_unscaling_twice_says_so_and_the_step_can_be_made():
    net, opt = training()
    scaler = amp.GradScaler("cpu", init_scale=8.0)
    opt.zero_grad()
    scaler.scale(F.cross_entropy(net(lz.ones(5, 3)), lz.zeros(5, dtype="int64"))).backward()
    scaler.unscale_(opt)
    grad, before = net[0].weight.grad.numpy().copy(), net[0].weight.numpy().copy()
    with pytest.raises(RuntimeError, match=r"unscale_\(\) has already been called on this optimizer"):
        scaler.unscale_(opt)
    np.testing.assert_array_equal(net[0].weight.grad.numpy(), grad)
    scaler.step(opt)
    scaler.update()
    assert not np.array_equal(net[0].weight.numpy(), before)


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_a_loss_that_was_never_finite_is_reported_and_parameters_stay(bad):
    net, opt = training()
    before = [p.numpy().copy() for p in net.parameters()]
    scaler = amp.GradScaler("cpu")
    with (
        pytest.warns(RuntimeWarning, match="first loss was infinite or NaN"),
        pytest.raises(FloatingPointError, match=r"in each of the first .* steps, before it was scaled"),
    ):
        for _ in range(200):
            opt.zero_grad()
            scaler.scale(F.cross_entropy(net(lz.ones(5, 3)), lz.zeros(5, dtype="int64")) * bad).backward()
            scaler.step(opt)
            scaler.update()
    for p, old in zip(net.parameters(), before, strict=True):
        np.testing.assert_array_equal(p.numpy(), old)


@pytest.mark.parametrize("other, message", [
    (lambda: training(5)[1], r"another model: 'exp_avg' of parameter 0 has shape \(5, 3\), the parameter has \(4, 3\)"),
    (lambda: optim.AdamW(nn.Linear(3, 4).parameters()), r"another model: its groups hold \[2\] parameters, this optimizer's hold \[4\]"),
])  # fmt: skip
def test_resuming_with_the_state_of_another_model_changes_nothing(other, message):
    net, opt = training()
    before, groups = values(opt.state_dict()["state"]), str(opt.param_groups)
    state = other().state_dict()
    with pytest.raises(ValueError, match=message):
        opt.load_state_dict(state)
    after = values(opt.state_dict()["state"])
    assert before.keys() == after.keys() and str(opt.param_groups) == groups
    for k in before:
        np.testing.assert_array_equal(after[k], before[k])
    F.cross_entropy(net(lz.ones(5, 3)), lz.zeros(5, dtype="int64")).backward()
    opt.step()


@pytest.mark.parametrize("state, message", [
    ({"state": {}, "param_groups": [{}]}, "not an optimizer's state"),
    ({"state": {}, "param_groups": {"params": [0, 1, 2, 3]}}, "not an optimizer's state"),
    ({"state": {}, "param_groups": [{"params": 4}]}, "not an optimizer's state"),
    ({"state": [1], "param_groups": [{"params": [0, 1, 2, 3]}]}, "not an optimizer's state"),
    ({"state": {0: 1}, "param_groups": [{"params": [0, 1, 2, 3]}]}, "not an optimizer's state"),
    ({"state": {}, "param_groups": [{"params": [0, 1, 2, 3], "lr": -1.0}]}, "lr must not be negative"),
    ({"state": {}, "param_groups": [{"params": [0, 1, 2, 3], "lr": "x"}]}, "lr is a number"),
], ids=["no params", "groups by name", "params no list", "state no dict", "entry no dict", "negative", "no number"])  # fmt: skip
def test_what_is_no_state_is_refused_and_changes_nothing(state, message):
    _, opt = training()
    before, groups = values(opt.state_dict()["state"]), str(opt.param_groups)
    with pytest.raises((ValueError, TypeError), match=message):
        opt.load_state_dict(state)
    assert before.keys() == values(opt.state_dict()["state"]).keys() and str(opt.param_groups) == groups


# -- checkpoints ------------------------------------------------------------------------------------------------------

WRITER = """
import sys
import numpy as np
import lezero as lz
print("ready", flush=True)
for k in range(1, 100_000):
    lz.save({"k": k, "x": lz.tensor(np.full(1 << 20, k, "f4"))}, sys.argv[1])
"""


def run(code, *arguments, **options):
    env = {**os.environ, "PYTHONPATH": SOURCE}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], env=env, stdout=subprocess.PIPE, text=True, **options
    )


@posix
def test_a_writer_killed_at_any_point_leaves_a_whole_file(tmp_path):
    path = tmp_path / "x.lzm"
    lz.save({"k": 0, "x": lz.zeros(1 << 20)}, path)
    r = random.Random(0)
    last = 0
    for _ in range(3):
        writer = run(WRITER, str(path))
        assert writer.stdout.readline() == "ready\n"
        time.sleep(0.05 + 0.2 * r.random())
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        found = lz.load(path)
        assert np.all(found["x"].numpy() == found["k"])
        last = max(last, found["k"])
    assert last > 0  # it was killed while writing, not before


FULL = """
import resource, signal, sys
import numpy as np
import lezero as lz
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    lz.save({"x": lz.tensor(np.ones(1 << 20, "f4"))}, sys.argv[1])
except OSError as e:
    print(e)
"""


@posix
@pytest.mark.parametrize("there", [True, False])
def test_a_file_that_cannot_be_written_whole_is_not_written(tmp_path, there):
    path = tmp_path / "x.lzm"
    if there:
        lz.save({"x": 1}, path)
    said = run(FULL, str(path)).communicate()[0]
    assert f"cannot save {str(path)!r}: File too large; " in said
    assert ("the file that was there is as it was" if there else "no file was left behind") in said
    assert os.listdir(tmp_path) == (["x.lzm"] if there else [])
    assert not there or lz.load(path) == {"x": 1}


def test_a_folder_one_may_not_write_to(tmp_path, monkeypatch):
    path = tmp_path / "x.lzm"
    lz.save({"x": 1}, path)

    def refused(*_, **__):
        raise PermissionError(13, "Permission denied", "a temporary name")

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(
        PermissionError, match=r"cannot save .*x\.lzm.*: Permission denied; the file that was there is as it was"
    ) as e:
        lz.save({"x": 2}, path)
    assert "a temporary name" not in str(e.value)
    monkeypatch.undo()
    assert lz.load(path) == {"x": 1}
