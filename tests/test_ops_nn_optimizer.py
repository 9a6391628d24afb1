"""Optimizer updates against PyTorch's optimizers, several steps in float64."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from lezero.ops import optimizer as ops  # noqa: E402
from op_parity import both_roads, make_leaves  # noqa: E402

STEPS = 4


def apply(op, *operands, **attrs):
    """One update by reference and by decomposition."""
    arrays = [np.asarray(x, np.float64) if np.ndim(x) == 0 else x for x in operands]
    leaves, values = make_leaves(arrays, differentiate=False)
    return both_roads([op(*leaves, **attrs).node], values, 1e-14)[0]


def follow(theirs, ours, dtype=np.float64, tol=1e-14):
    """Run both for some steps; `ours` maps (param, grad, state, step) to the new parameter."""
    rng = np.random.default_rng(0)
    param = rng.standard_normal(50).astype(dtype)
    t = torch.tensor(param, requires_grad=True)
    reference, state = theirs([t]), {}
    for step in range(1, STEPS + 1):
        grad = rng.standard_normal(50).astype(dtype)
        t.grad = torch.tensor(grad)
        reference.step()
        param = ours(param, grad, state, step)
        assert param.dtype == dtype
        np.testing.assert_allclose(param, t.detach().numpy(), rtol=tol, atol=tol)


maximizing = pytest.mark.parametrize("maximize", [False, True])
decaying = pytest.mark.parametrize("decay", [0.0, 0.1])


@maximizing
@decaying
def test_sgd(decay, maximize):
    def ours(param, grad, state, step):
        return apply(ops.sgd_param, param, grad, 0.1, decay, maximize=maximize)

    follow(lambda ps: torch.optim.SGD(ps, 0.1, weight_decay=decay, maximize=maximize, foreach=False), ours)


@maximizing
@decaying
@pytest.mark.parametrize("dampening, nesterov", [(0.0, False), (0.0, True), (0.3, False)])
def test_sgd_with_momentum(decay, dampening, nesterov, maximize):
    def ours(param, grad, state, step):
        buffer = state.get("buffer", np.zeros_like(param))
        state["buffer"] = buffer = apply(
            ops.sgd_momentum_buffer, param, grad, buffer, 0.9, dampening, decay, step, maximize=maximize
        )
        return apply(ops.sgd_momentum_param, param, grad, buffer, 0.1, 0.9, decay, nesterov=nesterov, maximize=maximize)

    def theirs(ps):
        return torch.optim.SGD(ps, 0.1, 0.9, dampening, decay, nesterov, maximize=maximize, foreach=False)

    follow(theirs, ours)


@maximizing
@decaying
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("beta1", [0.9, 0.3])
def test_adam_and_adamw(decay, amsgrad, decoupled, maximize, beta1):
    def ours(param, grad, state, step):
        zero = np.zeros_like(param)
        how = {"decoupled": decoupled, "maximize": maximize}
        m = state["m"] = apply(ops.adam_m, param, grad, state.get("m", zero), beta1, decay, **how)
        v = state["v"] = apply(ops.adam_v, param, grad, state.get("v", zero), 0.99, decay, **how)
        if amsgrad:
            v = state["max"] = np.maximum(state.get("max", zero), v)
        return apply(ops.adam_param, param, m, v, 0.01, beta1, 0.99, 1e-8, decay, step, decoupled=decoupled)

    def theirs(ps):
        kind = torch.optim.AdamW if decoupled else torch.optim.Adam
        return kind(ps, 0.01, (beta1, 0.99), 1e-8, decay, amsgrad, maximize=maximize, foreach=False)

    follow(theirs, ours)


def test_adam_in_float32():
    def ours(param, grad, state, step):
        zero = np.zeros_like(param)
        m = state["m"] = apply_f32(ops.adam_m, param, grad, state.get("m", zero), 0.9, 0.0)
        v = state["v"] = apply_f32(ops.adam_v, param, grad, state.get("v", zero), 0.999, 0.0)
        return apply_f32(ops.adam_param, param, m, v, 1e-3, 0.9, 0.999, 1e-8, 0.0, step)

    def apply_f32(op, *operands):
        arrays = [np.asarray(x, np.float64) if np.ndim(x) == 0 else x for x in operands]
        leaves, values = make_leaves(arrays, differentiate=False)
        return both_roads([op(*leaves).node], values, 1e-6)[0]

    follow(lambda ps: torch.optim.Adam(ps, 1e-3, foreach=False), ours, np.float32, 2e-7)


@maximizing
@decaying
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_rmsprop(decay, centered, momentum, maximize):
    def ours(param, grad, state, step):
        zero = np.zeros_like(param)
        square = state["square"] = apply(
            ops.rmsprop_square, param, grad, state.get("square", zero), 0.95, decay, maximize=maximize
        )
        mean = zero
        if centered:
            mean = state["mean"] = apply(
                ops.rmsprop_mean, param, grad, state.get("mean", zero), 0.95, decay, maximize=maximize
            )
        buffer = state["buffer"] = apply(
            ops.rmsprop_buffer, param, grad, state.get("buffer", zero), square, mean, momentum, 1e-8, decay,
            centered=centered, maximize=maximize,
        )  # fmt: skip
        return apply(ops.rmsprop_param, param, buffer, 0.01)

    def theirs(ps):
        return torch.optim.RMSprop(ps, 0.01, 0.95, 1e-8, decay, momentum, centered, maximize=maximize, foreach=False)

    follow(theirs, ours, tol=1e-12)  # PyTorch's order of the last step's rounding differs without momentum


@maximizing
@decaying
def test_adagrad(decay, maximize):
    def ours(param, grad, state, step):
        total = state["total"] = apply(
            ops.adagrad_sum, param, grad, state.get("total", np.zeros_like(param)), decay, maximize=maximize
        )
        return apply(ops.adagrad_param, param, grad, total, 0.1, 0.05, 1e-10, decay, step, maximize=maximize)

    def theirs(ps):
        return torch.optim.Adagrad(ps, 0.1, 0.05, decay, maximize=maximize, foreach=False)

    follow(theirs, ours)


def test_state_keeps_its_own_dtype_beside_half_precision_parameters():
    param, m = np.ones(4, np.float16), np.zeros(4, np.float32)
    leaves, values = make_leaves([param, param, m, np.float64(0.9), np.float64(0.0)], differentiate=False)
    found = both_roads([ops.adam_m(*leaves).node], values, 1e-6)[0]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, 0.1, rtol=1e-6)


def test_what_does_not_fit_is_said():
    a, b, lr, decay = make_leaves([np.ones(3), np.ones(4), np.float64(0.1), np.float64(0.0)])[0]
    with pytest.raises(ValueError, match=r"sgd_param: grad has shape \(4,\), \(3,\) is needed"):
        ops.sgd_param(a, b, lr, decay)
    with pytest.raises(TypeError, match="sgd_param: takes param, grad, lr, weight_decay; 2 operands were given"):
        ops.sgd_param(a, a)
