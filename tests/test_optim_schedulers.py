"""Learning-rate schedules against PyTorch's: 100 steps, to 1e-12."""

import math
import warnings

import pytest

from lezero import nn, optim
from lezero.optim import lr_scheduler, swa_utils
from lezero.tensor import ones

torch = pytest.importorskip("torch")
theirs_module = torch.optim.lr_scheduler


def pair(momentum=0.9):
    """Optimizers of two groups with different rates."""
    ours = [{"params": [nn.Parameter(ones(1))], "lr": 0.5}, {"params": [nn.Parameter(ones(1))]}]
    theirs = [
        {"params": [torch.nn.Parameter(torch.ones(1))], "lr": 0.5},
        {"params": [torch.nn.Parameter(torch.ones(1))]},
    ]
    return optim.SGD(ours, lr=0.1, momentum=momentum), torch.optim.SGD(theirs, lr=0.1, momentum=momentum)


def rates(optimizer):
    return [value for group in optimizer.param_groups for value in (group["lr"], group["momentum"])]


def follow(make, steps=100, metrics=None):
    ours, theirs = pair()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        a, b = make(lr_scheduler, ours), make(theirs_module, theirs)
        for step in range(steps):
            assert rates(ours) == pytest.approx(rates(theirs), rel=1e-12, abs=1e-15), step
            assert a.get_last_lr() == [g["lr"] for g in ours.param_groups]
            theirs.step()
            arguments = () if metrics is None else (metrics(step),)
            a.step(*arguments), b.step(*arguments)
    return a, ours


SCHEDULES = {
    "lambda": lambda m, o: m.LambdaLR(o, lambda e: 0.95**e),
    "lambda a group": lambda m, o: m.LambdaLR(o, [lambda e: 0.95**e, lambda e: 1 / (e + 1)]),
    "multiplicative": lambda m, o: m.MultiplicativeLR(o, lambda e: 0.9 + 0.001 * e),
    "step": lambda m, o: m.StepLR(o, 7, 0.3),
    "milestones": lambda m, o: m.MultiStepLR(o, [3, 30, 30, 80], 0.4),
    "constant": lambda m, o: m.ConstantLR(o, 0.2, 9),
    "linear": lambda m, o: m.LinearLR(o, 0.1, 0.8, 20),
    "exponential": lambda m, o: m.ExponentialLR(o, 0.93),
    "polynomial": lambda m, o: m.PolynomialLR(o, 60, 2.0),
    "cosine": lambda m, o: m.CosineAnnealingLR(o, 100, 0.01),
    "cosine and back": lambda m, o: m.CosineAnnealingLR(o, 13),
    "warm restarts": lambda m, o: m.CosineAnnealingWarmRestarts(o, 7, 2, 0.01),
    "warm restarts, equal": lambda m, o: m.CosineAnnealingWarmRestarts(o, 10),
    "one cycle": lambda m, o: m.OneCycleLR(o, [1.0, 0.3], total_steps=101),
    "one cycle, linear": lambda m, o: m.OneCycleLR(
        o, 1.0, epochs=10, steps_per_epoch=11, anneal_strategy="linear", pct_start=0.4
    ),
    "one cycle, three phases": lambda m, o: m.OneCycleLR(
        o, 1.0, total_steps=120, three_phase=True, cycle_momentum=False
    ),
    "sequential": lambda m, o: m.SequentialLR(
        o, [m.LinearLR(o, 0.1, 1.0, 10), m.CosineAnnealingLR(o, 50), m.ExponentialLR(o, 0.9)], [10, 60]
    ),
    "sequential, nested": lambda m, o: m.SequentialLR(
        o, [m.ConstantLR(o, 0.1, 10), m.CosineAnnealingWarmRestarts(o, 9)], [10]
    ),
    "chained": lambda m, o: m.ChainedScheduler([m.ConstantLR(o, 0.1, 10), m.ExponentialLR(o, 0.97), m.StepLR(o, 30)]),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_are_pytorchs(name):
    follow(SCHEDULES[name])


@pytest.mark.parametrize("mode, threshold_mode", [("min", "rel"), ("max", "rel"), ("min", "abs"), ("max", "abs")])
def test_plateau_is_pytorchs(mode, threshold_mode):
    def make(m, o):
        return m.ReduceLROnPlateau(
            o, mode, 0.5, patience=3, threshold=0.01, threshold_mode=threshold_mode, cooldown=2, min_lr=[1e-3, 1e-2]
        )

    follow(make, metrics=lambda step: math.sin(step / 5) + 2)


def test_swalr_is_pytorchs():
    ours, theirs = pair()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for strategy in ("cos", "linear"):
            a = swa_utils.SWALR(ours, 0.05, 10, strategy)
            b = torch.optim.swa_utils.SWALR(theirs, swa_lr=0.05, anneal_epochs=10, anneal_strategy=strategy)
            for _ in range(20):
                assert rates(ours) == pytest.approx(rates(theirs), rel=1e-10)
                a.step(), b.step()


def test_warm_up_rises_and_falls():
    ours, _ = pair()
    schedule = lr_scheduler.WarmupLR(ours, 10, 110)
    seen = []
    for _ in range(120):
        seen.append(ours.param_groups[1]["lr"])
        schedule.step()
    assert seen[0] == 0 and seen[5] == pytest.approx(0.05) and seen[10] == pytest.approx(0.1)
    assert (
        seen[60] == pytest.approx(0.05)
        and seen[110] == pytest.approx(0, abs=1e-15)
        and seen[119] == pytest.approx(0, abs=1e-15)
    )
    linear = lr_scheduler.WarmupLR(pair()[0], 4, 24, decay="linear", min_factor=0.2, start_factor=0.5)
    for _ in range(14):
        linear.step()
    assert linear.get_last_lr()[1] == pytest.approx(0.1 * 0.6)
    with pytest.raises(ValueError, match="total_steps"):
        lr_scheduler.WarmupLR(pair()[0], 10)


@pytest.mark.parametrize("name", SCHEDULES)
def test_state_goes_on_where_it_was(name):
    first, optimizer = follow(SCHEDULES[name], 40)
    other = pair()[0]
    second = SCHEDULES[name](lr_scheduler, other)
    second.load_state_dict(first.state_dict())
    for group, saved in zip(other.param_groups, optimizer.param_groups):
        group.update({k: v for k, v in saved.items() if k != "params"})
    for _ in range(30):
        first.step(), second.step()
        assert rates(optimizer) == rates(other)


def test_a_schedule_resumes_from_last_epoch():
    ours, _ = pair()
    schedule = lr_scheduler.ExponentialLR(ours, 0.9)
    for _ in range(5):
        schedule.step()
    resumed = lr_scheduler.ExponentialLR(ours, 0.9, last_epoch=4)
    assert resumed.last_epoch == 5 and ours.param_groups[1]["lr"] == pytest.approx(0.1 * 0.9**5)
    with pytest.raises(KeyError, match="initial_lr"):
        lr_scheduler.StepLR(pair()[0], 3, last_epoch=7)


def test_mistakes_are_named():
    ours, _ = pair()
    with pytest.raises(TypeError, match="Optimizer is needed, got int"):
        lr_scheduler.StepLR(3, 1)
    with pytest.raises(ValueError, match=r"max_lr has 3 values for 2"):
        lr_scheduler.OneCycleLR(ours, [1, 2, 3], 10)
    with pytest.raises(ValueError, match="another optimizer"):
        lr_scheduler.ChainedScheduler([lr_scheduler.StepLR(ours, 1), lr_scheduler.StepLR(pair()[0], 1)])
    with pytest.raises(KeyError, match="another schedule"):
        lr_scheduler.StepLR(ours, 1).load_state_dict(lr_scheduler.LinearLR(ours).state_dict())
    cycle = lr_scheduler.OneCycleLR(ours, 1.0, 3)
    cycle.step(), cycle.step(), cycle.step()
    with pytest.raises(ValueError, match="step 4 of a schedule of 3"):
        cycle.step()


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda o: lr_scheduler.StepLR(o, 2.5), TypeError, r"^StepLR: step_size is an int, got 2\.5$"),
        (lambda o: lr_scheduler.StepLR(o, 2, gamma="a"), TypeError, "^StepLR: gamma is a number, got 'a'$"),
        (lambda o: lr_scheduler.MultiStepLR(o, [1.5]), TypeError, r"^MultiStepLR: a milestone is an int, got 1\.5$"),
        (lambda o: lr_scheduler.LinearLR(o, total_iters=2.5), TypeError, "^LinearLR: total_iters is an int"),
        (lambda o: lr_scheduler.ExponentialLR(o, "a"), TypeError, "^ExponentialLR: gamma is a number"),
        (lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=10.5), TypeError, r"^OneCycleLR: total_steps is an int, got 10\.5$"),
        (lambda o: lr_scheduler.OneCycleLR(o, 0.1, epochs=2.5, steps_per_epoch=3), TypeError, "^OneCycleLR: epochs is an int"),
        (lambda o: lr_scheduler.OneCycleLR(o, "a", total_steps=10), TypeError, "^OneCycleLR: max_lr is a number"),
        (lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=10, div_factor=0), ValueError, "^OneCycleLR: div_factor"),
        (lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=-1), ValueError, "^ReduceLROnPlateau: patience and cooldown"),
        (lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=2.5), TypeError, "^ReduceLROnPlateau: patience is an int"),
        (lambda o: lr_scheduler.ReduceLROnPlateau(o, patiense=3), TypeError, "no argument 'patiense': did you mean 'patience'"),
        (lambda o: lr_scheduler.ChainedScheduler([3]), TypeError, "^ChainedScheduler: schedules are needed, got a int"),
        (lambda o: lr_scheduler.StepLR(o, 0), ValueError, "^StepLR: step_size is 1 or more, got 0$"),
        (lambda o: lr_scheduler.StepLR(o, [3]), TypeError, r"^StepLR: step_size is an int, got \[3\]$"),
        (lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=0), ValueError, "^CosineAnnealingLR: T_max is 1 or more, got 0$"),
        (lambda o: lr_scheduler.MultiStepLR(o, 3), TypeError, "^MultiStepLR: milestones are a list of steps, got 3$"),
        (lambda o: lr_scheduler.LambdaLR(o, 0.5), TypeError, r"^LambdaLR: lr_lambda is a function .*, got 0\.5$"),
        (lambda o: lr_scheduler.MultiplicativeLR(o, [0.5, 1]), TypeError, "^MultiplicativeLR: lr_lambda is a function"),
    ],
)  # fmt: skip
def test_arguments_of_schedules_are_refused_when_made(make, error, message):
    with pytest.raises(error, match=message):
        make(pair()[0])


def test_one_cycle_may_have_a_phase_of_no_steps():
    ours, _ = pair()
    cycle = lr_scheduler.OneCycleLR(ours, 1.0, total_steps=10, pct_start=0.1)
    rates = [cycle.get_last_lr()[0]]
    for _ in range(9):
        ours.step()
        cycle.step()
        rates.append(cycle.get_last_lr()[0])
    assert rates[0] == max(rates) == 1.0 and rates[1:] == sorted(rates[1:], reverse=True)


def test_a_schedule_that_steps_before_its_optimizer_warns_once():
    optimizer, _ = pair()
    schedule = lr_scheduler.StepLR(optimizer, 1)
    with pytest.warns(UserWarning, match=r"before the first optimizer.step\(\)") as seen:
        schedule.step(), schedule.step()
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other, _ = pair()
        schedule = lr_scheduler.StepLR(other, 1)
        other.step(), schedule.step()


ARGUMENTS = {
    "StepLR": (2,), "MultiStepLR": ([1],), "ExponentialLR": (0.9,), "CosineAnnealingLR": (5,), "LambdaLR": (lambda e: 1.0,),
    "MultiplicativeLR": (lambda e: 1.0,), "LinearLR": (), "ConstantLR": (), "PolynomialLR": (), "WarmupLR": (2, 5),
    "CosineAnnealingWarmRestarts": (5,), "ReduceLROnPlateau": (), "OneCycleLR": (0.1, 10), "CyclicLR": (0.1, 1.0),
}  # fmt: skip


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_schedule_of_something_that_is_no_optimizer_is_refused(name):
    with pytest.raises(TypeError, match=f"^{name}: an Optimizer is needed, got Linear$"):
        getattr(lr_scheduler, name)(nn.Linear(2, 2), *ARGUMENTS[name])


def test_that_is_every_schedule():
    of_others = {"ChainedScheduler", "SequentialLR", "LRScheduler"}
    assert {n for n in lr_scheduler.__all__ if n not in of_others} == set(ARGUMENTS)
    with pytest.raises(TypeError, match=r"^SWALR: an Optimizer is needed, got Linear$"):
        swa_utils.SWALR(nn.Linear(2, 2), 0.1)
