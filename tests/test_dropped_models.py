"""A model that nobody holds any more costs nothing: its pending initial values are not drawn."""

import numpy as np

import lezero as lz
from lezero import nn, optim
from lezero.runtime import run


def computed():
    """Shapes of what the last run computed."""
    return [tuple(int(d) for d in n.shape) for n in run.statistics.last[0].graph.outputs]


def test_initial_values_of_a_dropped_model_are_not_drawn():
    lz.realize()
    dropped = nn.Sequential(nn.Linear(30, 40), nn.BatchNorm1d(40), nn.Linear(40, 5))
    kept = nn.Linear(3, 2)
    del dropped
    total = lz.ones(3).sum().item()
    assert total == 3 and sorted(computed()) == [(), (2,), (2, 3)]
    assert np.abs(kept.weight.numpy()).min() > 0


def test_what_is_held_otherwise_is_drawn():
    lz.realize()
    model = nn.Linear(3, 2)
    weights, bias = [model.weight], model.bias.detach()
    optimizer = optim.SGD([nn.Linear(4, 5).weight], lr=0.1)
    del model
    lz.realize()
    assert {(2, 3), (2,), (5, 4)} <= set(computed())
    assert np.abs(weights[0].numpy()).min() > 0 and np.abs(bias.numpy()).min() > 0
    assert np.abs(optimizer.param_groups[0]["params"][0].numpy()).min() > 0


def test_numbers_drawn_afterwards_are_the_same():
    drawn = []
    for drop in (False, True):
        lz.manual_seed(5)
        first = nn.Linear(6, 7)
        if drop:
            del first
        drawn.append([nn.Linear(4, 3).weight.numpy().copy(), lz.rand(5).numpy()])
    for a, b in zip(*drawn):
        np.testing.assert_array_equal(a, b)


def result_of(drop, read_first):
    """A result of a model and the gradient of what it was given."""
    lz.manual_seed(1)
    x = nn.Parameter(lz.tensor([[0.5, -1.0, 2.0]]))
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    y = model(x)
    if drop:
        del model
    if read_first:
        y.item()
    y.sum().backward()
    return y.numpy().copy(), x.grad.numpy().copy()


def test_what_a_dropped_model_gave_has_its_value_and_gradients():
    for read_first in (False, True):
        for a, b in zip(result_of(False, read_first), result_of(True, read_first)):
            np.testing.assert_array_equal(a, b)


def test_a_step_updates_parameters_that_only_the_optimizer_holds():
    w = nn.Parameter(lz.tensor([1.0, 2.0]))
    optimizer = optim.SGD([w], lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        (w * w).sum().backward()
        optimizer.step()
    optimizer_only = optim.SGD([nn.Parameter(lz.tensor([4.0]))], lr=0.5)
    (held,) = optimizer_only.param_groups[0]["params"]
    held.grad = lz.tensor([2.0])
    del held
    optimizer_only.step()
    assert optimizer_only.param_groups[0]["params"][0].tolist() == [3.0] and w.tolist() == [0, 0]
