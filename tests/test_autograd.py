"""Gradients by function, functions with gradients of their own, and checking by finite differences."""

from __future__ import annotations

import numpy as np
import pytest

import lezero as lz
from lezero.autograd import Function, custom_op, grad, gradcheck, gradgradcheck, value_and_grad

rng = np.random.default_rng(0)


def leaf(*shape, dtype=np.float64):
    return lz.tensor(rng.standard_normal(shape).astype(dtype), requires_grad=True)


# -- grad and backward ----------------------------------------------------------------------------------------------


def test_grad_gives_gradients_and_leaves_grad_alone():
    x, w = leaf(4, 3), leaf(3)
    h = x * w
    dx, dw, dh = grad((h * h).sum(), [x, w, h])
    np.testing.assert_allclose(dh.numpy(), 2 * h.numpy())
    np.testing.assert_allclose(dx.numpy(), 2 * h.numpy() * w.numpy())
    np.testing.assert_allclose(dw.numpy(), (2 * h.numpy() * x.numpy()).sum(0))
    assert x.grad is None and w.grad is None


def test_grad_of_values_computed_by_an_earlier_run():
    x = leaf(5)
    h = x.exp()
    h.numpy()
    y = (h * h).sum()
    y.item()
    dh, dx = grad(y, [h, x])
    np.testing.assert_allclose(dh.numpy(), 2 * h.numpy())
    np.testing.assert_allclose(dx.numpy(), 2 * np.exp(2 * x.numpy()))


def test_gradients_of_gradients():
    x = leaf(6)
    (g,) = grad((x**3).sum(), x, create_graph=True)
    (gg,) = grad(g.sum(), x, create_graph=True)
    (ggg,) = grad(gg.sum(), x)
    np.testing.assert_allclose(gg.numpy(), 6 * x.numpy())
    np.testing.assert_allclose(ggg.numpy(), np.full(6, 6.0))


def test_grad_with_several_outputs_and_seeds():
    x = leaf(3)
    (g,) = grad([x * 2, x.sin()], x, [lz.tensor([1.0, 2.0, 3.0], dtype=lz.float64), lz.ones(3, dtype=lz.float64)])
    np.testing.assert_allclose(g.numpy(), 2 * np.array([1, 2, 3]) + np.cos(x.numpy()))


def test_grad_says_what_is_wrong():
    x, unused = leaf(3), leaf(2)
    with pytest.raises(RuntimeError, match=r"do not depend on input 1 of shape \(2,\)"):
        grad(x.sum(), [x, unused])
    assert grad(x.sum(), [x, unused], allow_unused=True)[1] is None
    assert grad(x.sum(), [x, unused], materialize_grads=True)[1].tolist() == [0, 0]
    with pytest.raises(RuntimeError, match="output 0 has shape"):
        grad(x * 2, x)
    with pytest.raises(RuntimeError, match="does not require a gradient"):
        grad(x.sum(), lz.ones(2))
    with pytest.raises(RuntimeError, match="does not depend on anything"):
        grad(lz.ones(1).sum(), x)
    with pytest.raises(ValueError, match="2 gradients"):
        grad(x * 2, x, [lz.ones(3), lz.ones(3)])
    y = (x * x).sum()
    grad(y, x)
    with pytest.raises(RuntimeError, match="taken before"):
        grad(y, x)


def test_backward_of_several_tensors_and_of_chosen_inputs():
    x, w = leaf(3), leaf(3)
    lz.autograd.backward([(x * w).sum(), (x * 2).sum()])
    np.testing.assert_allclose(x.grad.numpy(), w.numpy() + 2)
    lz.autograd.backward((x * w).sum(), inputs=[w])
    np.testing.assert_allclose(w.grad.numpy(), 2 * x.numpy())
    np.testing.assert_allclose(x.grad.numpy(), w.numpy() + 2)


# -- of functions ---------------------------------------------------------------------------------------------------


def test_grad_of_a_function_nests():
    cube = lambda x: x**3
    assert lz.grad(cube)(2.0).item() == pytest.approx(12)
    assert lz.grad(lz.grad(cube))(2.0).item() == pytest.approx(12)
    assert lz.grad(lz.grad(lz.grad(cube)))(2.0).item() == pytest.approx(6)


def test_grad_of_a_function_of_trees():
    def loss(parameters, x):
        return ((x @ parameters["w"] + parameters["b"][0]) ** 2).mean()

    parameters = {"w": lz.tensor(rng.standard_normal((3, 2))), "b": [lz.zeros(2, dtype=lz.float64)]}
    x = lz.tensor(rng.standard_normal((4, 3)))
    value, (gradients, dx) = value_and_grad(loss, argnums=(0, 1))(parameters, x)
    error = x.numpy() @ parameters["w"].numpy()
    np.testing.assert_allclose(value.item(), (error**2).mean())
    np.testing.assert_allclose(gradients["w"].numpy(), x.numpy().T @ (2 * error / error.size))
    np.testing.assert_allclose(gradients["b"][0].numpy(), (2 * error / error.size).sum(0))
    np.testing.assert_allclose(dx.numpy(), (2 * error / error.size) @ parameters["w"].numpy().T)
    with pytest.raises(TypeError, match="tensor of one element"):
        lz.grad(lambda x: x * 2)(x)
    value, aux = lz.grad(lambda x: ((x * x).sum(), "more"), has_aux=True)(x)
    assert aux == "more"
    np.testing.assert_allclose(value.numpy(), 2 * x.numpy())


def test_vjp_may_be_pulled_back_again():
    x = lz.tensor(rng.standard_normal(4))
    (a, b), pull = lz.vjp(lambda t: (t.sin(), t * 3), x)
    for scale in (1.0, 2.0):
        (dx,) = pull(lz.full((4,), scale, dtype=lz.float64), lz.ones(4, dtype=lz.float64))
        np.testing.assert_allclose(dx.numpy(), scale * np.cos(x.numpy()) + 3)
    np.testing.assert_allclose(b.numpy(), 3 * x.numpy())
    assert a.shape == (4,)


# -- functions with gradients of their own ----------------------------------------------------------------------------


class Scaled(Function):
    calls = 0

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, dy):
        Scaled.calls += 1
        return dy * ctx.factor * 10, None  # ten times too much, so that it shows


class Exp(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        return dy * y


class Polar(Function):
    """Two results, of which one is read again, and an integer one."""

    calls = 0

    @staticmethod
    def forward(ctx, a, b):
        r, which = (a * a + b * b).sqrt(), (a > b).long()
        ctx.save_for_backward(a, b, r)
        return r, a * b, which

    @staticmethod
    def backward(ctx, dr, dp, dwhich):
        Polar.calls += 1
        a, b, r = ctx.saved_tensors
        return dr * a / r + dp * b, dr * b / r + dp * a


def test_a_function_has_its_own_gradient_every_time():
    Scaled.calls = 0
    for factor in (2.0, 2.0, 3.0):
        x = leaf(3)
        Scaled.apply(x, factor).sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), np.full(3, 10 * factor))
    assert Scaled.calls == 3


def test_a_function_s_gradient_is_asked_for_after_its_value_was_read():
    x = leaf(3)
    y = Exp.apply(x).sum()
    y.item()
    y.backward()
    np.testing.assert_allclose(x.grad.numpy(), np.exp(x.numpy()))


def test_a_function_may_be_differentiated_twice_through_what_it_saved():
    assert gradcheck(Exp.apply, leaf(3))
    assert gradgradcheck(Exp.apply, leaf(3))
    two = lambda a, b: Polar.apply(a, b)[:2]
    assert gradcheck(two, [leaf(3), leaf(3)])
    assert gradgradcheck(two, [leaf(2), leaf(2)])


def test_backward_is_called_once_for_all_results():
    Polar.calls = 0
    a, b = leaf(3), leaf(3)
    r, p, which = Polar.apply(a, b)
    assert which.dtype is lz.int64 and not which.requires_grad
    (r.sum() + (p * p).sum() + p.sum()).backward()
    assert Polar.calls == 1
    x, y = a.numpy(), b.numpy()
    np.testing.assert_allclose(a.grad.numpy(), x / np.hypot(x, y) + (2 * x * y + 1) * y)


def test_needs_input_grad_and_unused_results():
    seen = {}

    class Pair(Function):
        @staticmethod
        def forward(ctx, a, b, c):
            ctx.set_materialize_grads(False)
            ctx.b = b
            return a + b, b * c

        @staticmethod
        def backward(ctx, first, second):
            seen.update(needs=ctx.needs_input_grad, first=first, second=second, b=ctx.b)
            return first, None, None

    a, b = leaf(2), lz.ones(2, dtype=lz.float64)
    Pair.apply(a, b, 2.0)[0].sum().backward()
    assert seen["needs"] == (True, False, False) and seen["second"] is None and seen["b"].tolist() == [1, 1]
    assert a.grad.tolist() == [1, 1]


def test_non_differentiable_results():
    class Sorted(Function):
        @staticmethod
        def forward(ctx, x):
            y, order = x.sort()
            ctx.save_for_backward(order)
            half = y * 0.5
            ctx.mark_non_differentiable(half)
            return y, half

        @staticmethod
        def backward(ctx, dy, _):
            (order,) = ctx.saved_tensors
            return dy.scatter(0, order, dy)

    x = leaf(4)
    y, half = Sorted.apply(x)
    assert y.requires_grad and not half.requires_grad
    w = lz.arange(4, dtype=lz.float64)
    (y * w).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.argsort(np.argsort(x.numpy())))


def test_wrong_functions_say_what_is_wrong():
    def function(answer):
        class Wrong(Function):
            @staticmethod
            def forward(ctx, x, n):
                return x * 2

            @staticmethod
            def backward(ctx, dy):
                return answer(dy)

        return Wrong

    x = leaf(3)
    for answer, words in [
        (lambda dy: dy, "returned 1 gradients, but forward took 2 arguments"),
        (lambda dy: (dy, dy), "argument 1, which is not a tensor"),
        (lambda dy: (dy[:2], None), r"of shape \(2,\) for argument 0 of shape \(3,\)"),
    ]:
        with pytest.raises(RuntimeError, match=words):
            function(answer).apply(x, 1).sum().backward()
    with pytest.raises(TypeError, match="got float for argument 0"):
        function(lambda dy: (1.0, None)).apply(x, 1).sum().backward()
    with pytest.raises(TypeError, match="tensors only"):

        class Bad(Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(1)
                return x

        Bad.apply(x)


def test_a_function_inside_a_captured_step_and_its_tensors_are_let_go():
    w = leaf(3)
    optimizer = lz.optim.SGD([w], lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = (Exp.apply(w) * x).sum()
        loss.backward()
        optimizer.step()
        return loss

    x = lz.ones(3, dtype=lz.float64)
    start = w.numpy().copy()
    plain = [step(x).item() for _ in range(4)]
    with lz.no_grad():
        w.copy_(lz.tensor(start))
    captured = lz.jit(step)
    assert [captured(x).item() for _ in range(4)] == plain
    # nothing of a step is held by the trace: repeating it adds no live results
    Exp.apply(w).sum().item()
    before = lz.runtime.stats()["plans_built"]
    for _ in range(3):
        Exp.apply(w).sum().item()
    assert lz.runtime.stats()["plans_built"] == before


def test_functions_without_gradients_are_just_called():
    with lz.no_grad():
        assert not Exp.apply(leaf(2)).requires_grad
    assert not Exp.apply(lz.ones(2)).requires_grad


def test_a_custom_operation():
    @custom_op
    def swish(x, beta=1.0):
        """x * sigmoid(beta x)"""
        return x * (beta * x).sigmoid()

    assert gradcheck(swish, leaf(4))

    @swish.gradient
    def _(dy, y, x, beta=1.0):
        s = (beta * x).sigmoid()
        return dy * (s + beta * y * (1 - s))

    assert swish.__name__ == "swish" and "sigmoid" in swish.__doc__
    assert gradcheck(lambda x: swish(x, 2.0), leaf(4))
    assert gradgradcheck(lambda x: swish(x, 2.0), leaf(3))


# -- checking -------------------------------------------------------------------------------------------------------


def test_gradcheck_finds_a_wrong_gradient():
    with pytest.raises(lz.autograd.GradcheckError, match="output 0 with respect to input 0"):
        gradcheck(lambda x: Scaled.apply(x, 2.0), leaf(3))
    assert not gradcheck(lambda x: Scaled.apply(x, 2.0), leaf(3), raise_exception=False)
    with pytest.raises(TypeError, match="float64"):
        gradcheck(lambda x: x, leaf(3, dtype=np.float32))


def test_gradcheck_of_matrices_and_complex_numbers():
    assert gradcheck(lambda a, b: (a @ b).tanh(), [leaf(3, 2), leaf(2, 3)])
    assert gradgradcheck(lambda a, b: (a @ b).tanh(), [leaf(2, 2), leaf(2, 2)])
    z = lz.tensor(rng.standard_normal(3) + 1j * rng.standard_normal(3), requires_grad=True)
    assert gradcheck(lambda z: z * z.conj() + z * z, z)


@pytest.mark.parametrize("limits", [(1, 3), (1, None), (None, 3), (3, 1), ([1, 1, 3], [3, 2, 3]), ([1, 3, 1], None)])
def test_what_lies_on_a_limit_has_the_gradient_pytorch_gives(limits):
    grads = []
    for package in (lz, pytest.importorskip("torch")):
        low, high = (package.tensor(v, dtype=package.float64) if isinstance(v, list) else v for v in limits)
        x = package.tensor([1.0, 2.0, 3.0], dtype=package.float64, requires_grad=True)
        bounds = [v.requires_grad_() for v in (low, high) if isinstance(v, package.Tensor)]
        (x.clamp(low, high) * x.detach()).sum().backward()
        grads.append([v.grad.tolist() for v in (x, *bounds)])
    assert grads[0] == grads[1]
