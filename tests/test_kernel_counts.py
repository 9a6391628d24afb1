"""How many kernels everyday computations take: what is fused stays fused.

A kernel is one launch; packing a product's operands and combining partial results belong to theirs.
"""

from __future__ import annotations

import numpy as np
import pytest

import lezero as lz
import lezero.nn.functional as F
from lezero import nn, optim
from lezero.hal import registry
from lezero.runtime import run

pytestmark = pytest.mark.skipif(registry.current().name != "cpu", reason="other backends have no kernels to count")
SHAPES = [(8, 3, 3, 3), (8,), (10, 8), (10,), (1,), (5, 7), (64, 33)]


def normal(*shape):
    return lz.tensor(np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32))


def kernels(compute):
    """Kernels of the run that `compute` causes, warm or not."""
    lz.realize()
    before = {id(p): p.runs for p in run._plans.values()}
    result = compute()
    lz.realize()
    plans = [p for p in run._plans.values() if p.runs != before.get(id(p), 0)]
    del result
    return sum(p.program.schedule.kernels for p in plans)


@pytest.mark.parametrize("rows, columns", [(r, c) for r in (1, 64, 1000) for c in (3, 100, 9000) if r * c <= 1_000_000])
def test_softmax_and_layer_norm_are_one_kernel_each(rows, columns):
    x, scale, shift = normal(rows, columns), normal(columns), normal(columns)
    assert kernels(lambda: F.softmax(x, -1)) == 1
    assert kernels(lambda: F.log_softmax(x, -1)) == 1
    assert kernels(lambda: F.layer_norm(x, (columns,), scale, shift)) == 1


def test_cross_entropy_is_one_kernel():
    x, target = normal(64, 100), lz.tensor(np.arange(64))
    assert kernels(lambda: F.cross_entropy(x, target)) == 1
    assert kernels(lambda: F.cross_entropy(x, target, reduction="sum")) == 1
    assert kernels(lambda: F.nll_loss(x, target)) == 1


def test_class_labels_have_the_rows_of_scores_on_sequences():
    """As many as there are positions, which is an extent of their own until the scores are compared with them."""
    table, w = normal(10, 32), normal(100, 32)
    w.requires_grad_()

    def step(tokens, target):
        scores = F.linear(F.embedding(tokens, table), w)
        loss = F.cross_entropy(scores.reshape(-1, 100), target)
        loss.backward()
        return loss, w.grad

    tokens, target = lz.tensor(np.arange(21).reshape(3, 7) % 10), lz.tensor(np.arange(21))
    found = [set(k.operations) for k in lz.explain(step, tokens, target).kernels]
    assert any({"max", "exp", "eq", "mul"} <= operations for operations in found)


def test_losses_are_one_kernel_each():
    x, y = normal(64, 10), normal(64, 10)
    assert kernels(lambda: F.mse_loss(x, y)) == 1
    assert kernels(lambda: F.l1_loss(x, y)) == 1
    assert kernels(lambda: F.binary_cross_entropy_with_logits(x, y.sigmoid())) == 1


def test_a_linear_layer_with_bias_and_gelu_is_one_kernel():
    x, w, b = normal(64, 100), normal(32, 100), normal(32)
    assert kernels(lambda: F.gelu(F.linear(x, w, b))) == 1


def test_what_follows_a_linear_layer_on_sequences_follows_its_tiles():
    """The product's rows are positions of all sequences: dimensions that are split, symbolic or not, and merged again."""
    x, w, b = normal(4, 6, 5, 32), normal(32, 32), normal(32)
    assert kernels(lambda: F.gelu(F.linear(x, w, b))) == 1
    assert kernels(lambda: F.linear(x, w, b) + x) == 1
    table = normal(10, 32)
    for batch, length in ((3, 7), (2, 5)):
        tokens = lz.tensor(np.arange(batch * length).reshape(batch, length) % 10)
        embedded = F.embedding(tokens, table)
        lz.realize(embedded)
        assert kernels(lambda: F.linear(F.gelu(F.linear(embedded, w, b)), w, b) + embedded) == 2  # noqa: B023


def operations_of_products(step, *data):
    return [set(k.operations) for k in lz.explain(step, *data).kernels if "dot" in k.operations]


def test_work_on_sequences_in_half_precision_has_a_kernel_of_its_own():
    x, w, b = (t.to(lz.bfloat16) for t in (normal(4, 6, 32), normal(32, 32), normal(32)))
    lz.realize(x, w, b)
    assert [set(k.operations) for k in lz.explain(lambda: F.linear(x, w, b) + x).kernels] == [{"dot"}, {"add"}]


def test_the_gradient_of_an_activation_follows_the_product_that_makes_what_it_is_of():
    x, first, second = normal(4, 6, 32), nn.Linear(32, 64), nn.Linear(64, 32)

    def step(x):
        second(lz.tanh(first(x))).square().sum().backward()
        return first.weight.grad

    assert sum("mul" in found for found in operations_of_products(step, x)) == 2  # of the loss and of tanh


def test_a_product_stores_nothing_that_its_readers_can_compute():
    """What layer norm's gradient makes of its incoming one goes into sums: the product that gives that one stores it alone."""
    x, first, second, norm = normal(4, 6, 32), nn.Linear(32, 32), nn.Linear(32, 32), nn.LayerNorm(32)

    def step(x):
        h = norm(first(x))
        (second(h) + h).square().sum().backward()
        return first.weight.grad

    assert {"dot", "add"} in operations_of_products(step, x)
    assert not any("sub" in found or {"add", "mul"} <= found for found in operations_of_products(step, x)[2:])


def test_a_convolution_with_bias_and_relu_is_one_kernel():
    x, w, b = normal(2, 16, 8, 8), normal(32, 16, 3, 3), normal(32)
    packed = F.relu(F.conv2d(x, w, b, padding=1))
    lz.realize(packed)  # lies channels-last from here on
    again = normal(16, 32, 3, 3)
    assert kernels(lambda: F.relu(F.conv2d(packed, again, normal(16), padding=1))) == 1


def test_a_first_layer_reads_its_image_as_it_lies():
    x, w = normal(2, 3, 16, 16), normal(32, 3, 3, 3)
    assert kernels(lambda: F.conv2d(x, w, stride=2, padding=1)) == 1
    dy = normal(2, 32, 8, 8).contiguous()
    w.requires_grad_()

    def gradient():
        F.conv2d(x, w, stride=2, padding=1).backward(dy)
        return w.grad

    assert kernels(gradient) == 2  # one brings dy to channels-last


CONVOLUTIONS = {
    "3x3": ((40, 32, 3, 3), {"padding": 1}),
    "pointwise": ((40, 32, 1, 1), {}),
    "strided": ((40, 32, 1, 1), {"stride": 2}),
    "grouped": ((40, 16, 3, 3), {"groups": 2}),
    "depthwise": ((32, 1, 3, 3), {"groups": 32}),
    "few channels": ((40, 3, 3, 3), {}),
}


@pytest.mark.parametrize("dtype", [lz.bfloat16, lz.float16])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_the_gradient_of_a_weight_that_autocast_rounds_is_widened_where_it_is_made(case, dtype):
    shape, options = CONVOLUTIONS[case]
    channels = shape[1] * options.get("groups", 1)
    x = normal(4, channels, 12, 14).to(dtype)
    weight = normal(*shape)
    wide, narrow = weight.requires_grad_(), weight.detach().to(dtype).requires_grad_()
    dy = lz.ones_like(F.conv2d(x, narrow, **options))
    lz.realize()

    def gradient(leaf):
        F.conv2d(x, leaf.to(dtype), **options).backward(dy)
        return leaf.grad

    extra = kernels(lambda: gradient(wide)) - kernels(lambda: gradient(narrow))
    assert extra == 0
    assert wide.grad.dtype is lz.float32
    np.testing.assert_array_equal(wide.grad.numpy(), narrow.grad.float().numpy())


@pytest.mark.parametrize(
    "make",
    [
        lambda ps: lz.optim.SGD(ps, lr=0.1, momentum=0.9, weight_decay=1e-4),
        lambda ps: lz.optim.SGD(ps, lr=0.1, momentum=0.9, nesterov=True),
        lambda ps: lz.optim.AdamW(ps, lr=1e-3),
        lambda ps: lz.optim.Adam(ps, lr=1e-3),
        lambda ps: lz.optim.RMSprop(ps, lr=1e-3),
        lambda ps: lz.optim.Adagrad(ps, lr=1e-3),
    ],
    ids=["momentum", "nesterov", "adamw", "adam", "rmsprop", "adagrad"],
)
def test_an_optimizer_step_is_one_kernel_for_all_parameters(make):
    parameters = [lz.nn.Parameter(normal(*s)) for s in SHAPES]
    optimizer = make(parameters)
    for _ in range(3):
        for p in parameters:
            p.grad = normal(*p.shape)
        lz.realize()
        assert kernels(optimizer.step) == 1


def test_vectors_run_along_memory_in_a_convolutional_network():
    """A reduction over the pixels of a channels-last value must not stride through memory with its vectors."""
    from lezero import nn
    from lezero.schedule.group import loop_order

    lz.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 32, 7, stride=2, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1),
        nn.Conv2d(32, 64, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 16, 3, bias=False), nn.Flatten(),
        nn.Linear(16 * 14 * 14, 4),
    )  # fmt: skip
    before = set(map(id, run._plans.values()))
    net(normal(4, 3, 69, 69)).sum().backward()
    lz.realize()
    (plan,) = [p for p in run._plans.values() if id(p) not in before]
    grouping = plan.program.schedule.grouping
    large = [g for g in grouping.groups if g.kind == "loops" and len(g.shape) >= 4 and np.prod(g.shape) > 10_000]
    assert len(large) >= 8
    for g in large:
        innermost = [v for v in loop_order(g.nodes, g, grouping.orders) if v.extent != 1][-1]
        assert g.reduced is None or (innermost.name in g.reduced) == (g.style == "row"), g.names()
        orders = {grouping.orders[n] for n in g.nodes if n.ndim == 4 and min(n.shape) > 1}
        assert orders <= {(0, 2, 3, 1)}, g.names()


def test_an_update_computes_for_itself_what_others_compute_too():
    """Stored for each other, it would be one more array for each parameter: updates are kernels of their own."""
    w = nn.Parameter(lz.rand(64, 64))
    opt = optim.SGD([w], lr=0.1, maximize=True)

    def step(x):
        opt.zero_grad()
        (x @ w).square().sum().backward()
        looked_at = (-w.grad).exp().sum()
        opt.step()
        return looked_at

    kernels = lz.explain(step, lz.rand(8, 64)).kernels
    (update,) = [k for k in kernels if "sub" in k.operations]
    assert "neg" in update.operations


def test_a_result_in_another_shape_is_no_copy():
    x, w = normal(6, 10), normal(10, 8)
    assert kernels(lambda: (x @ w).reshape(2, 3, 8)) == 1
    assert kernels(lambda: (x.T @ x + 1).exp().flatten()) == 1
    y = (x @ w).reshape(2, 3, 8)
    np.testing.assert_allclose(y.numpy().reshape(6, 8), x.numpy() @ w.numpy(), rtol=1e-5)


def test_a_value_takes_the_memory_of_the_one_it_is_made_from():
    x, w, v = lz.tensor(normal(200, 300).numpy() / 20), normal(300, 400), normal(400, 5)
    y = F.softmax(x @ w, -1) @ v
    expected = np.exp(x.numpy().astype(np.float64) @ w.numpy())
    expected = expected / expected.sum(-1, keepdims=True) @ v.numpy()
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-4, atol=1e-5)
    plan = run.statistics.last[0]
    (pair,) = plan.program.schedule.shared.items()
    assert [n.op.name for n in pair] == ["div", "dot"]
    z = F.softmax(x @ w, -1)
    both = (z @ v, (x @ w).sum(0))  # the product is read again
    lz.realize(*both)
    plan = run.statistics.last[0]
    assert plan.program.schedule.shared == {}


@pytest.mark.parametrize("shape", [(6, 8), (1, 6, 8), (2, 3, 8)])
def test_random_numbers_do_not_follow_a_product_s_tiles(shape):
    """Inside a tile nobody knows which element it is, also when what is drawn is behind a view."""
    x, w, r = normal(6, 10), normal(10, 8), normal(*shape)
    y = (x @ w + lz.randn(8)).reshape(*shape) + r
    bias = (y.numpy() - r.numpy()).reshape(6, 8) - x.numpy() @ w.numpy()
    np.testing.assert_allclose(bias, np.broadcast_to(bias[0], bias.shape), atol=1e-5)
    assert bias[0].std() > 0.1
    drawn = lz.randn(8)  # is a result too
    y = (x @ w + drawn).reshape(*shape) + r
    expected = (x.numpy() @ w.numpy() + drawn.numpy()).reshape(shape) + r.numpy()
    np.testing.assert_allclose(y.numpy(), expected, atol=1e-5)


def test_a_batch_norm_takes_two_sums_forward_and_two_back():
    """Those of the gradient are those of its parameters' gradients: the weight is the same in every place of a channel."""
    x, weight, bias, dy = normal(4, 8, 6, 6), normal(8), normal(8), normal(4, 8, 6, 6)
    for t in (x, weight, bias):
        t.requires_grad_()
    lz.realize()
    before = {id(p): p.runs for p in run._plans.values()}
    F.batch_norm(x, None, None, weight, bias, training=True).backward(dy)
    lz.realize()
    (plan,) = [p for p in run._plans.values() if p.runs != before.get(id(p), 0)]
    assert sum(n.op.kind == "reduce" for n in plan.program.schedule.graph.nodes()) == 4


def test_what_only_a_sum_reads_is_not_stored():
    """The backward pass of batch norm behind a pool: the gradient is stored, what its sums are of is computed in their loop."""
    net = nn.Sequential(nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    net(normal(4, 3, 32, 32)).square().sum().backward()
    lz.realize()
    images = [(s.name, n.op.name) for group in run.statistics.last[0].program.schedule.steps for s in group for n in s.writes
              if n.shape == (4, 16, 30, 30)]  # fmt: skip
    assert len(images) == 5, images
