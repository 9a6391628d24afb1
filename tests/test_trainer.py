"""The trainer: learns, resumes bit for bit, stops when told, and shows how it goes."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

import lezero as lz
from lezero import amp, io, nn, optim
from lezero.data import DataLoader, TensorDataset
from lezero.data.randomness import batch_generator
from lezero.nn import functional as F
from lezero.runtime.inputs import default_generator
from lezero.tensor import tensor
from lezero.trainer import Callback, Checkpoints, EarlyStopping, Trainer, accuracy
from lezero.trainer.callbacks import Best
from lezero.trainer.metrics import Meter

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 6)).astype(np.float32)
Y = (X[:, 0] + X[:, 1] > 0).astype(np.int64)


class Noisy(TensorDataset):
    """Every source of randomness a dataset may use in this process."""

    def gather(self, indices):
        x, y = super().gather(indices)
        noise = batch_generator().random(x.shape) + np.random.rand(*x.shape)
        return x + 0.1 * noise.astype(np.float32), y


def make(dropout=0.2, scheduler=True, lr=0.05, **options):
    default_generator.manual_seed(7)
    np.random.seed(7)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 2))
    optimizer = optim.AdamW(model.parameters(), lr=lr)
    if scheduler:
        options = {"scheduler": optim.lr_scheduler.CosineAnnealingLR(optimizer, 20), "schedule_per": "step", **options}
    return Trainer(model, optimizer, F.cross_entropy, metrics=["accuracy"], progress=False, **options)


def loaders():
    return DataLoader(Noisy(X, Y), 8, shuffle=True), DataLoader(TensorDataset(X, Y), 16)


def parameters(trainer):
    return {k: v.numpy().copy() for k, v in trainer.model.state_dict().items()}


def assert_same(left, right):
    for key, value in parameters(left).items():
        np.testing.assert_array_equal(value, parameters(right)[key], err_msg=key)
    # Reported numbers are read in other places of the two runs, so other plans compute them: equal up to float32 rounding.
    assert len(left.history) == len(right.history)
    for a, b in zip(left.history, right.history):
        assert a == pytest.approx(b, rel=2e-7)


class StopAt(Callback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, trainer):
        trainer.stop = trainer.step == self.step


# -- learning -------------------------------------------------------------------------------------------------


def test_fit_learns_and_reports():
    trainer = make(dropout=0.0)
    history = trainer.fit(*loaders(), epochs=10)
    assert len(history) == 10 and trainer.step == 50
    assert set(history[0]) == {"loss", "accuracy", "val_loss", "val_accuracy", "lr"}
    assert history[-1]["val_loss"] < history[0]["val_loss"] and history[-1]["val_accuracy"] > 0.9


def test_fit_does_what_the_plain_loop_does():
    loader = [(tensor(X[i : i + 10]), tensor(Y[i : i + 10])) for i in range(0, 40, 10)]
    trainer = make(dropout=0.0, scheduler=False)
    trainer.fit(loader, epochs=2)
    plain = make(dropout=0.0, scheduler=False)
    for _ in range(2):
        plain.model.train()
        for x, y in loader:
            plain.optimizer.zero_grad()
            F.cross_entropy(plain.model(x), y).backward()
            plain.optimizer.step()
    for key, value in parameters(trainer).items():
        np.testing.assert_array_equal(value, parameters(plain)[key], err_msg=key)


def test_accumulated_batches_give_the_gradient_of_one_large_batch():
    def weights(size, accumulate):
        default_generator.manual_seed(1)
        model = nn.Linear(6, 2)
        trainer = Trainer(
            model, optim.SGD(model.parameters(), lr=0.5), F.cross_entropy, accumulate=accumulate, progress=False
        )
        trainer.fit(DataLoader(TensorDataset(X, Y), size), epochs=2)
        return model.weight.numpy().copy(), trainer.step

    (large, steps), (small, same_steps) = weights(20, 1), weights(5, 4)
    assert steps == same_steps == 4
    np.testing.assert_allclose(large, small, rtol=1e-5, atol=1e-7)
    assert weights(5, 3)[1] == 6  # 3 + 3 + 2 batches in each of two epochs


def test_gradients_are_clipped():
    model = nn.Linear(6, 2)
    before = model.weight.numpy().copy()
    trainer = Trainer(
        model, optim.SGD(model.parameters(), lr=1.0), F.cross_entropy, clip_grad_norm=1e-3, progress=False
    )
    trainer.fit(DataLoader(TensorDataset(X, Y), 40), epochs=1)
    assert 0 < np.linalg.norm(model.weight.numpy() - before) <= 1.01e-3


class Bits(nn.Module):
    """A network that remembers in which dtype its products came."""

    def __init__(self):
        super().__init__()
        self.layer, self.seen = nn.Linear(6, 2), []

    def forward(self, x):
        y = self.layer(x)
        self.seen.append(y.dtype)
        return y


def test_a_low_precision_holds_for_training_evaluation_and_prediction():
    def dtypes(**options):
        model = Bits()
        trainer = Trainer(model, optim.SGD(model.parameters(), lr=0.1), F.cross_entropy, progress=False, **options)
        loader = DataLoader(TensorDataset(X, Y), 40)
        trainer.fit(loader, loader, epochs=1)
        trainer.evaluate(loader), trainer.predict(loader), trainer.predict(tensor(X))
        assert model.layer.weight.dtype is lz.float32
        return model.seen

    assert dtypes(autocast=lz.bfloat16) == [lz.bfloat16] * 5
    assert dtypes() == [lz.float32] * 5


def test_a_scaler_scales_skips_and_unscales_before_clipping():
    default_generator.manual_seed(3)
    model = nn.Linear(6, 2)
    scaler = amp.GradScaler(init_scale=2.0**10)
    options = {"autocast": lz.float16, "scaler": scaler, "clip_grad_norm": 1e-3, "accumulate": 2, "progress": False}
    trainer = Trainer(model, optim.SGD(model.parameters(), lr=1.0), F.cross_entropy, **options)
    before = model.weight.numpy().copy()
    trainer.fit(DataLoader(TensorDataset(X, Y), 20), epochs=1)
    moved = np.linalg.norm(model.weight.numpy() - before)
    assert (
        0.9e-3 < moved <= 1.01e-3
    )  # gradients that were still scaled would be clipped to a thousandth of this, or not at all

    before = model.weight.numpy().copy()
    trainer.fit(DataLoader(TensorDataset(np.full_like(X, np.inf), Y), 20), epochs=2)
    np.testing.assert_array_equal(model.weight.numpy(), before)
    assert scaler.get_scale() == 2.0**9


def test_a_scaler_travels_in_the_state():
    trainer = make(scaler=amp.GradScaler(init_scale=64.0))
    other = make(scaler=amp.GradScaler(init_scale=8.0))
    trainer.fit(*loaders(), epochs=1)
    other.load_state_dict(trainer.state_dict())
    assert other.scaler.get_scale() == 64.0
    without = trainer.state_dict() | {"scaler": None}
    other.load_state_dict(without)  # saved by a trainer that had none
    make().load_state_dict(trainer.state_dict())


def test_evaluate_and_predict_agree_with_the_model_and_leave_its_mode():
    trainer = make()
    trainer.model.train()
    loader = DataLoader(TensorDataset(X, Y), 7)
    outputs = trainer.predict(loader).numpy()
    means = trainer.evaluate(loader)
    assert outputs.shape == (40, 2) and trainer.model.training
    np.testing.assert_allclose(means["accuracy"], (outputs.argmax(1) == Y).mean(), rtol=1e-6)
    shifted = outputs - outputs.max(1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(1)) - shifted[np.arange(40), Y]
    np.testing.assert_allclose(means["loss"], losses.mean(), rtol=1e-5)
    np.testing.assert_allclose(trainer.predict(tensor(X)).numpy(), outputs, rtol=1e-5, atol=1e-6)


def test_metrics_are_functions_or_built_in_names():
    def largest(outputs, targets):
        return outputs.max()

    trainer = Trainer(nn.Linear(6, 2), metrics=["accuracy", largest], progress=False)
    assert set(trainer.evaluate([(tensor(X), tensor(Y))])) == {"accuracy", "largest"}
    assert list(Trainer(nn.Linear(6, 2), metrics={"right": accuracy}).metrics) == ["right"]
    with pytest.raises(ValueError, match="no metric 'acuracy'; built in: accuracy"):
        Trainer(nn.Linear(6, 2), metrics=["acuracy"])


def test_a_meter_weighs_by_samples():
    meter = Meter()
    meter.add({"loss": tensor(1.0)}, 3)
    meter.add({"loss": 5.0}, 1)
    assert meter.means() == {"loss": 2.0}
    for value in range(5000):
        meter.add({"loss": value, "other": 1.0}, 1)
    assert len(meter._unread) < 2000
    assert meter.means() == {"loss": (8.0 + sum(range(5000))) / 5004, "other": 1.0}


def test_a_plateau_scheduler_gets_the_validation_loss():
    trainer = make(scheduler=False, lr=0.1)
    trainer.scheduler = optim.lr_scheduler.ReduceLROnPlateau(trainer.optimizer, factor=0.5, patience=0, threshold=1e9)
    trainer.fit(*loaders(), epochs=3)
    assert trainer.history[-1]["lr"] < 0.1


# -- saving and resuming --------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 5, 7, 10, 14])
def test_an_interrupted_and_resumed_run_is_bit_for_bit_the_uninterrupted_one(step, tmp_path):
    whole = make(callbacks=[EarlyStopping(patience=9)])
    whole.fit(*loaders(), epochs=3)

    first = make(callbacks=[EarlyStopping(patience=9), StopAt(step)])
    first.fit(*loaders(), epochs=3, checkpoints=tmp_path)
    assert first.step == step

    second = make(callbacks=[EarlyStopping(patience=9)])
    default_generator.manual_seed(12345)
    np.random.seed(54321)
    second.fit(*loaders(), epochs=3, checkpoints=tmp_path, resume=True)
    assert second.step == 15
    assert_same(whole, second)
    for mine, theirs in zip(
        whole.optimizer.state_dict()["state"].values(), second.optimizer.state_dict()["state"].values()
    ):
        for key, value in mine.items():
            np.testing.assert_array_equal(np.asarray(value), np.asarray(theirs[key]), err_msg=key)


def test_resuming_works_with_accumulation_and_with_a_plain_list_of_batches(tmp_path):
    batches = [(tensor(X[i : i + 5]), tensor(Y[i : i + 5])) for i in range(0, 40, 5)]
    whole = make(accumulate=3)
    whole.fit(batches, epochs=2)
    first = make(accumulate=3, callbacks=[StopAt(4)])
    first.fit(batches, epochs=2, checkpoints=tmp_path)
    second = make(accumulate=3)
    second.fit(batches, epochs=2, checkpoints=tmp_path, resume=True)
    assert_same(whole, second)


def test_resume_starts_afresh_without_a_checkpoint_and_refuses_what_is_none(tmp_path):
    trainer = make()
    trainer.fit(*loaders(), epochs=1, checkpoints=tmp_path / "new", resume=True)
    assert trainer.epoch == 1 and (tmp_path / "new" / "last.lzm").exists()
    io.save({"weights": 1}, tmp_path / "other.lzm")
    with pytest.raises(ValueError, match="holds no trainer's state"):
        trainer.fit(*loaders(), epochs=2, resume=tmp_path / "other.lzm")
    with pytest.raises(ValueError, match="resume=True needs checkpoints"):
        trainer.fit(*loaders(), epochs=2, resume=True)


def test_a_run_that_is_done_can_be_prolonged(tmp_path):
    make().fit(*loaders(), epochs=1, checkpoints=tmp_path)
    more = make()
    assert len(more.fit(*loaders(), epochs=3, checkpoints=tmp_path, resume=True)) == 3


def test_best_and_last_are_kept(tmp_path):
    class Worse(Callback):
        def on_epoch_end(self, trainer, logs):
            logs["score"] = [1.0, 3.0, 2.0][trainer.epoch - 1]

    trainer = make(callbacks=[Worse()])
    trainer.fit(*loaders(), epochs=3, checkpoints=Checkpoints(tmp_path, monitor="score", mode="max"))
    assert io.load(tmp_path / "best.lzm")["epoch"] == 2
    assert io.load(tmp_path / "last.lzm")["epoch"] == 3
    assert sorted(os.listdir(tmp_path)) == ["best.lzm", "last.lzm"]


def test_saving_every_few_steps(tmp_path):
    saved = []

    class Watch(Checkpoints):
        def save(self, trainer):
            saved.append(trainer.step)
            return super().save(trainer)

    make().fit(*loaders(), epochs=2, checkpoints=Watch(tmp_path, every_steps=4, every_epochs=5, keep_best=False))
    assert saved == [4, 8, 10]


def test_ctrl_c_finishes_the_step_saves_and_says_how_to_go_on(tmp_path):
    class Press(Callback):
        def on_step_end(self, trainer):
            if trainer.step == 7:
                os.kill(os.getpid(), signal.SIGINT)

    whole = make()
    whole.fit(*loaders(), epochs=3)
    handler = signal.getsignal(signal.SIGINT)
    pressed = make(callbacks=[Press()])
    with pytest.raises(KeyboardInterrupt, match=r"after step 7; saved to .*last\.lzm, continue with resume=True"):
        pressed.fit(*loaders(), epochs=3, checkpoints=tmp_path)
    assert signal.getsignal(signal.SIGINT) is handler
    second = make()
    second.fit(*loaders(), epochs=3, checkpoints=tmp_path, resume=True)
    assert_same(whole, second)
    with pytest.raises(KeyboardInterrupt, match="nothing was saved"):
        make(callbacks=[Press()]).fit(*loaders(), epochs=3)


INTERRUPTED = """
import os, signal
import lezero as lz
from lezero.nn import functional as F
from lezero.trainer import Callback, Trainer

class Press(Callback):
    def on_step_end(self, trainer):
        os.kill(os.getpid(), signal.SIGINT)

model = lz.nn.Linear(2, 1)
trainer = Trainer(model, lz.optim.SGD(model.parameters()), F.mse_loss, callbacks=[Press()])
trainer.fit([(lz.ones(4, 2), lz.ones(4, 1))], epochs=1)
"""


def test_a_script_stopped_by_ctrl_c_ends_as_shells_expect(tmp_path):
    (tmp_path / "train.py").write_text(INTERRUPTED)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, tmp_path / "train.py"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode in (130, -signal.SIGINT)
    assert "KeyboardInterrupt: interrupted after step 1; nothing was saved" in done.stderr


def test_resuming_says_where(tmp_path, capsys):
    def said(epochs):
        trainer = make()
        trainer.progress = True
        trainer.fit(*loaders(), epochs=epochs, checkpoints=tmp_path, resume=True)
        return capsys.readouterr().out.splitlines()[0]

    last = tmp_path / "last.lzm"
    assert said(1) == f"there is no {last} to resume from: a new run"
    assert said(2) == f"resuming {last} in epoch 2 of 2, after step 5"
    assert said(2) == f"{last}: complete, 2 of 2 epochs are done"


def test_a_second_ctrl_c_stops_at_once(tmp_path):
    class Twice(Callback):
        def on_step_end(self, trainer):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as caught:
        make(callbacks=[Twice()]).fit(*loaders(), epochs=1, checkpoints=tmp_path)
    assert not str(caught.value)


# -- stopping -------------------------------------------------------------------------------------------------


def test_early_stopping_waits_and_stops():
    trainer = make(lr=1e-12, scheduler=False, callbacks=[EarlyStopping("val_loss", patience=2, min_delta=1.0)])
    trainer.fit(*loaders(), epochs=20)
    assert trainer.epoch == 3


def test_what_is_better():
    best = Best("accuracy")
    assert [best.improved({"accuracy": v}) for v in (0.5, 0.4, 0.5, 0.6, float("nan"))] == [
        True,
        False,
        False,
        True,
        False,
    ]
    with pytest.raises(KeyError, match="logs have only loss"):
        best.improved({"loss": 1})


# -- mistakes and display -------------------------------------------------------------------------------------


def test_mistakes_are_told():
    with pytest.raises(ValueError, match="schedule_per"):
        Trainer(nn.Linear(6, 2), schedule_per="day")
    with pytest.raises(ValueError, match="needs an optimizer and a loss_fn"):
        Trainer(nn.Linear(6, 2)).fit([], epochs=1)
    with pytest.raises(ValueError, match=r"gave no batch$"):
        make().fit([], epochs=1)
    with pytest.raises(ValueError, match="gave no batch; it is an iterator"):
        make().fit(iter(loaders()[0]), epochs=2)


def sgd():
    return optim.SGD(nn.Linear(6, 2).parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"model": nn.Linear}, TypeError, "model is the class Linear; an instance"),
        ({"model": "resnet"}, TypeError, "model is an nn.Module, got 'resnet'"),
        ({"loss_fn": "cross_entropy"}, TypeError, "loss_fn is a function .*, got 'cross_entropy'"),
        (
            {"loss_fn": nn.CrossEntropyLoss},
            TypeError,
            r"class CrossEntropyLoss; give an instance, CrossEntropyLoss\(\)",
        ),
        ({"optimizer": optim.SGD}, TypeError, r"the class SGD; give SGD\(model.parameters"),
        ({"optimizer": F.cross_entropy, "loss_fn": sgd()}, TypeError, "optimizer and loss_fn are swapped"),
        ({"optimizer": sgd()}, ValueError, "none of this model's parameters"),
        ({"scheduler": 3}, TypeError, r"scheduler is an instance with a step\(\), got 3"),
        ({"scheduler": optim.lr_scheduler.StepLR}, TypeError, "got the class StepLR"),
        ({"scheduler": optim.lr_scheduler.StepLR(sgd(), 2)}, ValueError, "the scheduler drives another optimizer"),
        ({"callbacks": [EarlyStopping]}, TypeError, "the callback EarlyStopping is a class; give an instance"),
        ({"callbacks": EarlyStopping()}, TypeError, "callbacks is a list"),
        ({"callbacks": [print]}, TypeError, "derive from lezero.trainer.Callback"),
        ({"autocast": True}, TypeError, "a dtype, lz.bfloat16 or lz.float16, .*got True"),
        ({"autocast": lz.float64}, TypeError, "bfloat16 or float16, got float64"),
        ({"scaler": True}, TypeError, r"scaler is an amp.GradScaler\(\), got True"),
        ({"clip_grad_norm": "1"}, ValueError, "clip_grad_norm is a number above 0, got '1'"),
        ({"clip_grad_norm": 0.0}, ValueError, "clip_grad_norm is a number above 0, got 0.0"),
        ({"accumulate": 0}, ValueError, "accumulate must be 1 or more, got 0"),
        ({"accumulate": 1.5}, TypeError, "accumulate is an int, got 1.5"),
        ({"metrics": [3]}, TypeError, "metric .* is a function of outputs and targets, got 3"),
        ({"metrics": {"loss2": nn.MSELoss}}, TypeError, "metric 'loss2' is a function .* got the class MSELoss"),
    ],
)
def test_wrong_arguments_are_told_at_construction(arguments, error, says):
    with pytest.raises(error, match=f"^(Trainer|autocast): .*{says}"):
        Trainer(**{"model": nn.Linear(6, 2), "loss_fn": F.cross_entropy, **arguments})


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        (
            {"loader": TensorDataset(X, Y)},
            TypeError,
            "fit takes batches.*a TensorDataset gives single items: DataLoader",
        ),
        ({"validation": TensorDataset(X, Y)}, TypeError, "fit: validation takes batches"),
        ({"loader": (X, Y)}, TypeError, r"DataLoader\(TensorDataset\(x, y\)"),
        ({"loader": tensor(X)}, TypeError, r"DataLoader\(TensorDataset\(x, y\)"),
        ({"loader": 3}, TypeError, "takes batches.*got 3"),
        ({"epochs": "3"}, TypeError, "epochs is an int, got '3'"),
        ({"epochs": -1}, ValueError, "epochs must be 0 or more"),
        ({"checkpoints": True}, TypeError, "checkpoints is a Checkpoints or the folder"),
    ],
)
def test_what_fit_cannot_use_is_told_before_anything_is_trained(given, error, says):
    trainer = make()
    before = parameters(trainer)
    with pytest.raises(error, match=says):
        trainer.fit(**{"loader": loaders()[0], "epochs": 1, **given})
    for key, value in parameters(trainer).items():
        np.testing.assert_array_equal(value, before[key])


def test_evaluate_and_predict_take_no_dataset_either():
    for call in (make().evaluate, make().predict):
        with pytest.raises(TypeError, match="gives single items"):
            call(TensorDataset(X, Y))
    with pytest.raises(TypeError, match="tensors and arrays"):
        make().predict(X)


@pytest.mark.parametrize(
    ("loss", "error", "says"),
    [
        (nn.CrossEntropyLoss(reduction="none"), ValueError, r"loss_fn gave a tensor of shape \(8,\).*\.mean\(\)"),
        (lambda outputs, targets: 1.0, TypeError, "loss_fn gave 1.0; a tensor of one element is needed"),
        (lambda outputs, targets: None, TypeError, "loss_fn gave None"),
    ],
)
def test_a_loss_that_is_no_scalar_tensor_is_told_at_the_first_batch(loss, error, says):
    trainer = make()
    trainer.loss_fn = loss
    with pytest.raises(error, match=says):
        trainer.fit(*loaders(), epochs=1)
    with pytest.raises(error, match=r"loss_fn gave"):
        trainer.evaluate(loaders()[0])
    trainer.loss_fn, trainer.metrics = F.cross_entropy, {"each": loss}
    if error is ValueError:
        with pytest.raises(error, match=r"metric 'each' gave a tensor of shape \(8,\)"):
            trainer.fit(*loaders(), epochs=1)


def test_targets_that_are_missing_are_told():
    with pytest.raises(TypeError, match=r"\nthe batch had no targets: batches are \(inputs, targets\)"):
        make().fit(DataLoader(TensorDataset(X), 8), epochs=1)


class Rows:
    """Items as dicts, as data sets of language models have them."""

    def __init__(self, key):
        self.key = key

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return {"input": X[index], self.key: Y[index]}


@pytest.mark.parametrize("key", ["labels", "label", "targets", "target"])
def test_batches_that_are_dicts_go_to_the_model_by_name(key):
    trainer, plain = (make(scheduler=False) for _ in range(2))
    trainer.model, plain.model = trainer.model[0], plain.model[0]
    named, unnamed = DataLoader(Rows(key), 8), DataLoader(TensorDataset(X, Y), 8)
    trainer.fit(named, named, epochs=1)
    plain.fit(unnamed, unnamed, epochs=1)
    assert trainer.history == plain.history
    np.testing.assert_array_equal(trainer.predict(named).numpy(), plain.predict(unnamed).numpy())


def test_plain_lines_when_there_is_no_terminal(capsys):
    trainer = make()
    trainer.progress = True
    trainer.fit(*loaders(), epochs=2)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and lines[1].startswith("epoch 2/2  loss ") and " %" in lines[1]


def test_a_bar_on_a_terminal():
    from rich.console import Console

    from lezero.trainer.progress import Bar

    console = Console(force_terminal=True, width=100, record=True)
    bar = Bar(console)
    for epoch in range(2):
        bar.begin(f"epoch {epoch}", 10)
        bar.advance(5, {"loss": 0.25})
        bar.end(f"done {epoch}")
    bar.close()
    assert "done 0" in console.export_text()
