"""``lz.jit``: the steady state, calls that differ in values only."""

import numpy as np
import pytest

import lezero as lz
from captures import OPTIMIZERS, batch, follow, native, state_of, trainer
from lezero.hal import registry
from lezero.nn import functional as F


def steady(kind="plain", optimizer="adamw", calls=4):
    """A captured step after a few calls, and the same recorded."""
    net, opt, step = trainer(kind, optimizer)
    captured = lz.jit(step)
    other_net, other_opt, recorded = trainer(kind, optimizer)
    for i in range(calls):
        assert captured(*batch(seed=i)).item() == recorded(*batch(seed=i)).item()
    (variant,) = captured._variants.values()
    assert variant.steady is not None
    return net, opt, captured, other_net, other_opt, recorded


@pytest.mark.parametrize("kind", ["plain", "dropout", "batch_norm"])
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_it_is_reached_and_kept(kind, optimizer):
    lz.manual_seed(3)
    captured = lz.jit(trainer(kind, optimizer)[2])
    for i in range(4):
        captured(*batch(seed=i))
    (variant,) = captured._variants.values()
    at_first = variant.steady
    assert at_first is not None
    for i in range(4):
        captured(*batch(seed=i))
    assert variant.steady is at_first


def test_arrays_parameters_and_gradients_held_from_before_a_call_keep_their_values():
    net, opt, captured, other_net, other_opt, recorded = steady()
    weight, grad = net[0].weight.numpy(), net[0].weight.grad
    weight_then, grad_then = weight.copy(), grad.numpy().copy()
    follow(captured, recorded, net, other_net, opt, other_opt)
    np.testing.assert_array_equal(weight, weight_then)
    np.testing.assert_array_equal(grad.numpy(), grad_then)
    assert not np.array_equal(weight, net[0].weight.numpy())
    assert not np.array_equal(grad_then, net[0].weight.grad.numpy())
    np.testing.assert_array_equal(net[0].weight.grad.numpy(), other_net[0].weight.grad.numpy())


def test_losses_held_from_several_calls_are_different_tensors():
    *_, captured, _, _, recorded = steady()
    losses = [(captured(*batch(seed=i)), recorded(*batch(seed=i)).item()) for i in range(6)]
    assert [a.item() for a, _ in losses] == [b for _, b in losses]


def test_values_written_from_outside_are_taken_up():
    net, opt, captured, other_net, other_opt, recorded = steady()
    for n in (net, other_net):
        with lz.no_grad():
            n[0].weight.mul_(0.5)
            n[2].bias.copy_(lz.ones(4))
    follow(captured, recorded, net, other_net, opt, other_opt)
    theirs = np.full((4, 16), 0.25, np.float32)
    for n in (net, other_net):
        n.load_state_dict({**n.state_dict(), "2.weight": lz.from_numpy(theirs)})
        n[0].weight.grad = None
    follow(captured, recorded, net, other_net, opt, other_opt, first=20)
    np.testing.assert_array_equal(theirs, np.full((4, 16), 0.25, np.float32))


def test_gradients_changed_between_calls_do_not_matter_after_zero_grad():
    net, opt, captured, other_net, other_opt, recorded = steady()
    with lz.no_grad():
        net[0].weight.grad.mul_(3.0)
        net[2].weight.grad = lz.zeros(16, 4).T
    follow(captured, recorded, net, other_net, opt, other_opt)


def test_recorded_and_captured_steps_can_take_turns():
    net, opt, captured, other_net, other_opt, recorded = steady()

    def by_hand(n, o, x, y):
        o.zero_grad()
        loss = F.cross_entropy(n(x), y)
        loss.backward()
        o.step()
        return loss.item()

    for i in range(4):
        x, y = batch(seed=50 + i)
        assert by_hand(net, opt, x, y) == by_hand(other_net, other_opt, x, y)
        assert captured(x, y).item() == recorded(x, y).item()
    follow(captured, recorded, net, other_net, opt, other_opt)


@native
def test_another_number_of_threads_or_backend_between_calls():
    net, opt, captured, other_net, other_opt, recorded = steady()
    threads = lz.get_num_threads()
    try:
        for n in (1, 3, 2):
            lz.set_num_threads(n)
            follow(captured, recorded, net, other_net, opt, other_opt, first=10 * n, calls=2)
        registry.set_backend("numpy")
        follow(captured, recorded, net, other_net, opt, other_opt, first=40, calls=2)
    finally:
        lz.set_num_threads(threads)
        registry.set_backend("cpu")
    follow(captured, recorded, net, other_net, opt, other_opt, first=50, calls=2)


def test_views_made_outside_follow_the_updates():
    p = lz.zeros(3)
    view, inner = p[0:2], p[0:2][1:]

    @lz.jit
    def f(x):
        p.add_(x)
        return p.sum()

    for i in range(6):
        assert f(lz.tensor(1.0)).item() == 3.0 * (i + 1)
        assert view.tolist() == [i + 1.0] * 2 and inner.tolist() == [i + 1.0]


def test_a_number_that_cannot_be_had_changes_nothing():
    net, opt, captured, other_net, other_opt, recorded = steady()
    before = state_of(net, opt)
    opt.param_groups[0]["lr"] = "fast"
    with pytest.raises((TypeError, ValueError)):
        captured(*batch(seed=9))
    opt.param_groups[0]["lr"] = 0.01
    for a, b in zip(before, state_of(net, opt), strict=True):
        np.testing.assert_array_equal(a, b)
    follow(captured, recorded, net, other_net, opt, other_opt)


def test_two_parameters_that_change_places():
    a, b = lz.tensor([1.0, 2.0]), lz.tensor([3.0, 4.0])

    @lz.jit
    def swap(k):
        x, y = a * 1, b + k
        a.copy_(y)
        b.copy_(x)

    want = [[1.0, 2.0], [3.0, 4.0]]
    for i in range(7):
        swap(lz.tensor(float(i)))
        want = [[v + i for v in want[1]], want[0]]
        assert [a.tolist(), b.tolist()] == want
