"""Autocast: which operations run in which precision, against its lists and against PyTorch; capture, nesting, threads."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import lezero as lz
from lezero import amp, models, nn, optim
from lezero.amp.lists import LOW, WIDE, WIDEST
from lezero.nn import functional as F
from lezero.ops.base import REGISTRY
from lezero.runtime.recording import STATE

LOW_TYPES = [lz.bfloat16, lz.float16]


def f32(*shape):
    return lz.tensor(np.random.default_rng(len(shape)).uniform(0.1, 0.9, shape).astype(np.float32))


def low(*shape):
    return f32(*shape).to(lz.bfloat16)


def computed(t):
    """The nodes a pending result is computed by."""
    found, stack = set(), [t._node]
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(node.inputs)
    return found


def names(t):
    return {n.op.name for n in computed(t)}


CLASSES = lz.tensor(np.arange(4) % 3)
PRODUCTS = {
    "attention": lambda: F.scaled_dot_product_attention(f32(1, 2, 4, 8), low(1, 2, 4, 8), f32(1, 2, 4, 8)),
    "conv2d": lambda: REGISTRY["conv2d"](f32(1, 2, 5, 5), f32(3, 2, 3, 3)),
    "conv2d_input_grad": lambda: F.conv_transpose2d(f32(1, 2, 5, 5), f32(2, 3, 3, 3), f32(3)),
    "convolution": lambda: F.conv2d(f32(1, 2, 5, 5), f32(3, 2, 3, 3), f32(3)),
    "dot": lambda: REGISTRY["dot"](f32(3, 4), low(4, 5)),
    "einsum": lambda: lz.einsum("ij,jk->ik", f32(3, 4), low(4, 5)),
    "linear": lambda: F.linear(f32(2, 3), f32(4, 3), f32(4)),
    "matmul": lambda: f32(3, 4) @ low(4, 5),
}
SUMS = {
    "acos": lambda x: x.acos(), "asin": lambda x: x.asin(), "cosh": lambda x: x.cosh(), "exp": lambda x: x.exp(),
    "exp2": lambda x: x.exp2(), "expm1": lambda x: x.expm1(), "integer_power": lambda x: x**2, "log": lambda x: x.log(),
    "log10": lambda x: x.log10(), "log1p": lambda x: x.log1p(), "log2": lambda x: x.log2(),
    "logaddexp": lambda x: lz.logaddexp(x, x), "logsigmoid": F.logsigmoid, "pow": lambda x: x**1.5,
    "reciprocal": lambda x: x.reciprocal(), "rsqrt": lambda x: x.rsqrt(), "sinh": lambda x: x.sinh(),
    "softplus": F.softplus, "square": lambda x: x.square(), "tan": lambda x: x.tan(),
    "cumprod": lambda x: x.cumprod(0), "cumsum": lambda x: x.cumsum(0), "logsumexp": lambda x: x.logsumexp(0),
    "linear_scan": lambda x: REGISTRY["linear_scan"](x, x), "mean": lambda x: x.mean(), "norm": lambda x: x.norm(),
    "prod": lambda x: x.prod(), "std": lambda x: x.std(), "sum": lambda x: x.sum(0), "var": lambda x: x.var(0),
    "log_softmax": lambda x: F.log_softmax(x, -1), "softmax": lambda x: F.softmax(x, -1),
    "batch_mean": REGISTRY["batch_mean"], "batch_var": REGISTRY["batch_var"],
    "group_norm": lambda x: F.group_norm(x, 1), "layer_norm": lambda x: F.layer_norm(x, (3,)),
    "rms_norm": lambda x: F.rms_norm(x, (3,)),
    "bce_loss": lambda x: F.binary_cross_entropy(x, x), "l1_loss": lambda x: F.l1_loss(x, x),
    "bce_with_logits": lambda x: F.binary_cross_entropy_with_logits(x, x), "mse_loss": lambda x: F.mse_loss(x, x),
    "cross_entropy": lambda x: F.cross_entropy(x, CLASSES), "huber_loss": lambda x: F.huber_loss(x, x),
    "kl_div": lambda x: F.kl_div(x, x, reduction="sum"), "nll_loss": lambda x: F.nll_loss(x, CLASSES),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x),
}  # fmt: skip
ROWS = lz.tensor(np.zeros((4, 3), np.int64))
PAIR = lz.tensor(np.array([0, 2])), lz.tensor(np.array([1, 2]))
JOINS = {
    "concatenate": lambda x, y: lz.cat([x, y]),
    "scatter": lambda x, y: x.scatter(0, ROWS, y),
    "scatter_add": lambda x, y: x.scatter_add(0, ROWS, y),
    "scatter_nd": lambda x, y: REGISTRY["scatter_nd"](x, y[:2, 0], *PAIR),
    "scatter_nd_add": lambda x, y: REGISTRY["scatter_nd_add"](x, y[:2, 0], *PAIR),
}


def test_every_listed_operation_is_tried_here():
    assert set(PRODUCTS) == LOW
    assert set(SUMS) == WIDE
    assert set(JOINS) == WIDEST
    assert set(REGISTRY) >= LOW | WIDE | WIDEST
    assert not LOW & WIDE and not LOW & WIDEST and not WIDE & WIDEST


@pytest.mark.parametrize("dtype", LOW_TYPES)
@pytest.mark.parametrize("name", sorted(LOW))
def test_products_run_in_the_low_type(name, dtype):
    with amp.autocast("cpu", dtype=dtype):
        y = PRODUCTS[name]()
    assert y.dtype is dtype
    assert name in names(y)


@pytest.mark.parametrize("dtype", LOW_TYPES)
@pytest.mark.parametrize("name", sorted(WIDE))
def test_what_needs_range_runs_in_float32(name, dtype):
    x = f32(4, 3).to(dtype)
    outside = SUMS[name](x)
    with amp.autocast("cpu", dtype=dtype):
        y = SUMS[name](x)
    assert y.dtype is lz.float32
    assert name in names(y)
    exact = SUMS[name](x.float())
    np.testing.assert_array_equal(y.detach().numpy(), exact.detach().numpy())
    assert outside.shape == y.shape


@pytest.mark.parametrize("dtype", LOW_TYPES)
@pytest.mark.parametrize("training", [False, True])
def test_batch_norm_keeps_the_type_of_its_input_and_computes_in_float32(dtype, training):
    x, weight, bias = f32(8, 3, 4, 4).to(dtype), f32(3), f32(3)
    x.requires_grad = True

    def normalised(x):
        mean, var = lz.full((3,), 0.5), lz.full((3,), 2.0)
        return F.batch_norm(x, mean, var, weight, bias, training), mean, var

    with amp.autocast("cpu", dtype=dtype):
        y, *statistics = normalised(x)
    (dx,) = lz.autograd.grad(y.float().square().sum(), x)
    assert y.dtype is dx.dtype is dtype
    assert {s.dtype for s in statistics} == {lz.float32}
    wide = x.detach().float()
    wide.requires_grad = True
    exact, *expected = normalised(wide)
    np.testing.assert_array_equal(y.detach().numpy(), exact.to(dtype).detach().numpy())
    for got, wanted in zip(statistics, expected, strict=True):
        np.testing.assert_array_equal(got.numpy(), wanted.numpy())


@pytest.mark.parametrize("name", sorted(WIDEST))
def test_what_joins_tensors_takes_the_widest(name):
    for dtypes in ((lz.bfloat16, lz.float32), (lz.float32, lz.bfloat16), (lz.float16, lz.bfloat16)):
        with amp.autocast("cpu"):
            y = JOINS[name](f32(4, 3).to(dtypes[0]), f32(4, 3).to(dtypes[1]))
            same = JOINS[name](low(4, 3), low(4, 3))
        assert y.dtype is lz.float32
        assert same.dtype is lz.bfloat16
        assert name in names(y)


def test_other_operations_follow_their_operands():
    with amp.autocast("cpu"):
        for op in (lambda x: x.relu(), lambda x: x + 1, F.gelu, lambda x: F.max_pool2d(x, 2), lambda x: x.T):
            assert op(low(1, 1, 4, 4)).dtype is lz.bfloat16
            assert op(f32(1, 1, 4, 4)).dtype is lz.float32
        assert (low(3) + f32(3)).dtype is lz.float32


def test_float64_and_integers_are_left_alone():
    wide, whole = lz.ones(3, 3, dtype=lz.float64), lz.ones(3, 3, dtype=lz.int32)
    with amp.autocast("cpu"):
        assert (wide @ wide).dtype is lz.float64
        assert (whole @ whole).dtype is lz.int32
        assert wide.sum().dtype is lz.float64
        assert whole.sum().dtype is lz.int64


def test_a_dtype_that_is_asked_for_is_given():
    x = f32(4, 3)
    with amp.autocast("cpu"):
        assert x.sum(dtype=lz.bfloat16).dtype is lz.bfloat16
        assert x.mean(dtype=lz.float64).dtype is lz.float64
        assert x.prod(dtype=lz.float16).dtype is lz.float16
        assert x.softmax(-1, dtype=lz.bfloat16).dtype is lz.bfloat16
        assert x.log_softmax(-1, dtype=lz.bfloat16).dtype is lz.bfloat16
        assert F.softmax(x, -1, dtype=lz.bfloat16).dtype is lz.bfloat16


def test_writes_keep_the_dtype_of_what_is_written_to():
    x = low(4, 3)
    with amp.autocast("cpu"):
        x.exp_()
        x[0] = f32(3)
    assert x.dtype is lz.bfloat16


TORCH = {
    "linear": lambda t, F, x: F.linear(x, x),
    "matmul": lambda t, F, x: x @ x,
    "bmm": lambda t, F, x: t.bmm(x[None], x[None]),
    "conv2d": lambda t, F, x: F.conv2d(x[None, None], x[None, None, :3, :3]),
    "attention": lambda t, F, x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "relu of a product": lambda t, F, x: (x @ x).relu(),
    "sum of products": lambda t, F, x: (x @ x) + x,
    "mse_loss": lambda t, F, x: F.mse_loss(x @ x, x @ x + 1),
    "smooth_l1_loss": lambda t, F, x: F.smooth_l1_loss(x @ x, x @ x + 1),
    "cat": lambda t, F, x: t.cat([x @ x, x]),
    "stack": lambda t, F, x: t.stack([x @ x, x]),
    "prod": lambda t, F, x: (x @ x).prod(),
    "embedding": lambda t, F, x: F.embedding(t.arange(3), x),
}


@pytest.mark.parametrize("name", sorted(TORCH))
def test_dtypes_and_values_are_those_of_pytorch(name):
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(0).uniform(0.2, 0.9, (6, 6)).astype(np.float32)
    with amp.autocast("cpu", dtype=lz.bfloat16):
        ours = TORCH[name](lz, F, lz.tensor(values))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        theirs = TORCH[name](torch, torch.nn.functional, torch.tensor(values))
    assert ours.dtype.name == str(theirs.dtype).removeprefix("torch.")
    np.testing.assert_allclose(ours.float().numpy(), theirs.float().numpy(), rtol=2e-2)


def test_parameters_get_gradients_of_their_own_dtype():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    x = f32(4, 1, 8, 8).requires_grad_()
    with amp.autocast("cpu"):
        out = model(x)
        loss = F.cross_entropy(out, CLASSES)
    assert (out.dtype, loss.dtype) == (lz.bfloat16, lz.float32)
    loss.backward()
    assert {p.grad.dtype for p in (x, *model.parameters())} == {lz.float32}
    assert {p.dtype for p in model.parameters()} == {lz.float32}
    assert {b.dtype for b in model.buffers() if b.is_floating_point()} == {lz.float32}


@pytest.mark.parametrize("inside", [True, False])
def test_backward_computes_in_the_precision_of_forward(inside):
    w, x = f32(8, 8).requires_grad_(), f32(4, 8)
    with amp.autocast("cpu"):
        loss = (x @ w).exp().sum()
        if inside:
            loss.backward()
    if not inside:
        loss.backward()
    rounded = lambda a: a.to(lz.bfloat16).float()
    dy = rounded(rounded(rounded(x) @ rounded(w)).exp())
    expected = rounded(rounded(x).T @ dy)
    np.testing.assert_array_equal(w.grad.numpy(), expected.numpy())
    dots = {n.dtype for n in computed(w.grad) if n.op.name == "dot"} if w.grad._rec else {lz.bfloat16}
    assert dots == {lz.bfloat16}


def test_a_parameter_used_twice_is_cast_once():
    w, x = nn.Parameter(f32(16, 16)), f32(4, 16)

    def casts(uses):
        def forward():
            y = x
            with amp.autocast("cpu"):
                for _ in range(uses):
                    y = y @ w
            return y

        last = lz.explain(forward).passes[-1][1]
        return sum(n.op.name == "cast" and n.inputs[0].shape == (16, 16) for n in last.nodes())

    assert casts(1) == casts(3) == 1


def test_blocks_nest_and_put_back_what_was():
    x = f32(3, 3)
    assert not amp.is_autocast_enabled("cpu")
    with amp.autocast("cpu", dtype=lz.float16) as outer:
        assert amp.get_autocast_dtype("cpu") is lz.float16
        with amp.autocast("cpu", dtype=lz.bfloat16):
            assert (x @ x).dtype is lz.bfloat16
            with amp.autocast("cpu", enabled=False):
                assert not amp.is_autocast_enabled()
                assert (x @ x).dtype is lz.float32
            assert (x @ x).dtype is lz.bfloat16
        with outer:
            assert (x @ x).dtype is lz.float16
        assert (x @ x).dtype is lz.float16
        with pytest.raises(ZeroDivisionError), amp.autocast("cpu", enabled=False):
            raise ZeroDivisionError
        assert amp.is_autocast_enabled()
    assert not amp.is_autocast_enabled()
    assert amp.get_autocast_dtype() is lz.bfloat16
    assert (x @ x).dtype is lz.float32


def test_as_a_decorator():
    @lz.autocast("cpu", dtype=lz.float16)
    def product(x, depth=0):
        return product(x, depth - 1) if depth else x @ x

    assert product(f32(3, 3)).dtype is product(f32(3, 3), 2).dtype is lz.float16
    assert (f32(3, 3) @ f32(3, 3)).dtype is lz.float32
    assert product.__name__ == "product"


def test_threads_choose_for_themselves():
    seen = {}
    shared = amp.autocast("cpu")(lambda x: x @ x)

    def other():
        seen["outside"] = (f32(3, 3) @ f32(3, 3)).dtype
        seen["decorated"] = shared(f32(3, 3)).dtype
        with amp.autocast("cpu", dtype=lz.float16):
            seen["inside"] = (f32(3, 3) @ f32(3, 3)).dtype

    with amp.autocast("cpu"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert (f32(3, 3) @ f32(3, 3)).dtype is lz.bfloat16
    assert seen == {"outside": lz.float32, "decorated": lz.bfloat16, "inside": lz.float16}
    assert STATE.autocast is None


def test_a_captured_function_is_recorded_for_each_precision():
    calls = []

    @lz.jit
    def product(x):
        calls.append(1)
        return x @ x

    def inside(dtype):
        with amp.autocast("cpu", dtype=dtype):
            return [product(f32(3, 3)).dtype for _ in range(4)]

    x = f32(3, 3)
    for _ in range(2):
        assert [product(x).dtype for _ in range(4)] == [lz.float32] * 4
        assert inside(lz.bfloat16) == [lz.bfloat16] * 4
        assert inside(lz.float16) == [lz.float16] * 4
    assert len(calls) == 6


def test_autocast_inside_a_captured_step():
    lz.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    x = f32(4, 6)

    def step():
        optimizer.zero_grad()
        with amp.autocast("cpu"):
            loss = F.cross_entropy(model(x), CLASSES)
        loss.backward()
        optimizer.step()
        return loss

    start = {k: v.clone() for k, v in model.state_dict().items()}
    losses = [step().item() for _ in range(5)]
    model.load_state_dict(start)
    captured = lz.jit(step)
    assert [captured().item() for _ in range(5)] == losses
    assert losses[-1] < losses[0]


def test_an_optimizer_stepping_inside_the_block_computes_as_outside():
    """Its segment must not be followed in another precision, and its updates are no operations of the model."""
    found = []
    for inside in (False, True):
        p = nn.Parameter(f32(4, 4))
        optimizer = optim.LAMB([p], lr=0.1)
        for _ in range(3):
            with amp.autocast("cpu", enabled=inside):
                p.grad = f32(4, 4)
                optimizer.step()
        found.append(p.detach().numpy())
    np.testing.assert_array_equal(*found)


TOKENS = lz.tensor(np.arange(10).reshape(2, 5))
MODELS = {
    "mobilenet_v2": lambda: models.mobilenet_v2(num_classes=10)(f32(2, 3, 32, 32)),
    "vit_b_16": lambda: models.vit_b_16(image_size=32, num_classes=10)(f32(2, 3, 32, 32)),
    "unet": lambda: models.unet()(f32(1, 3, 32, 32)),
    "bert": lambda: models.bert_base_for_masked_lm(num_hidden_layers=1)(TOKENS),
    "gpt2": lambda: models.gpt2(n_layer=1, n_embd=48, n_head=4)(TOKENS),
}


@pytest.mark.parametrize("name", sorted(MODELS))
def test_our_models_record_in_low_precision(name, undrawn):
    """Shapes and dtypes fit, there and back; nothing is run, since nothing is kept."""
    with amp.autocast("cpu"):
        out = MODELS[name]()
        loss = out.float().square().mean()
    loss.backward()
    assert out.dtype is lz.bfloat16
    products = {n.dtype for n in computed(out) if n.op.name in LOW}
    assert products == {lz.bfloat16}
    del out, loss
    gc.collect()  # a model that waits to be collected would be run by the next test


class Square(lz.autograd.Function):
    @staticmethod
    @amp.custom_fwd
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x @ x

    @staticmethod
    @amp.custom_bwd
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        Square.seen = amp.is_autocast_enabled()
        return dy @ x.T + x.T @ dy


class InFull(Square):
    forward = staticmethod(amp.custom_fwd(cast_inputs=lz.float32)(Square.forward.__wrapped__))
    backward = Square.backward


def test_functions_of_ones_own():
    for enabled in (True, False):
        x = f32(3, 3).requires_grad_()
        with amp.autocast("cpu", enabled=enabled):
            y = Square.apply(x)
        y.float().sum().backward()
        assert y.dtype is (lz.bfloat16 if enabled else lz.float32)
        assert Square.seen is enabled
    with amp.autocast("cpu"):
        y = InFull.apply(low(3, 3).requires_grad_())
    assert y.dtype is lz.float32
    y.sum().backward()
    assert Square.seen is False


def test_the_report_says_what_ran_in_which_precision():
    model, x = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)), f32(4, 6)
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    def step():
        with amp.autocast("cpu"):
            loss = F.cross_entropy(model(x), CLASSES)
        loss.backward()
        optimizer.step()
        return loss

    step().item()
    for report in (amp.report(), amp.report(step)):
        assert report.precisions("linear") == report.precisions("dot") == {"bfloat16"}
        assert report.precisions("layer_norm") == report.precisions("cross_entropy") == {"float32"}
        assert report.precisions("sgd_param") == {"float32"}
        assert "float32 -> bfloat16" in report.precisions("cast")
        assert report.precisions("tanh") == set()
        (row,) = [r for r in report.rows if r.operation == "linear"]
        assert (row.count, row.rule) == (2, "low")
        assert "layer_norm" in str(report) and "float32" in str(report)
        assert report.to_dict()["rows"][0].keys() == {"operation", "precision", "count", "rule"}
        rules = {(r.operation, r.precision): r.rule for r in report.rows}
        assert rules["layer_norm", "float32"] == rules["cross_entropy", "float32"] == "float32"
        assert rules["sum", "bfloat16"] == "operands"  # of a bias's gradient


def test_the_report_names_no_rule_for_what_ran_outside_autocast():
    x = f32(4, 4)

    def outside(x, w):
        return (x @ w).softmax(1).sum() + lz.cat([x, w]).sum()

    for dtype in (lz.float32, lz.float64, lz.bfloat16):
        given = x.to(dtype).realize(), x.T.to(dtype).realize()
        report = amp.report(outside, *given)
        assert report.precisions("matmul") == {dtype.name}
        assert {row.rule for row in report.rows} == {"operands"}
        outside(*given).item()
        assert {row.rule for row in amp.report().rows} == {"operands"}
    with amp.autocast("cpu"):
        report = amp.report(lambda x, w: lz.cat([x @ w, w]).sum(), x, x.T.realize())
    rules = {row.operation: row.rule for row in report.rows}
    assert (rules["matmul"], rules["concatenate"]) == ("low", "widest")


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: amp.autocast("cuda"), ValueError, "no device 'cuda'.*cpu"),
        (lambda: amp.autocast(lz.bfloat16), TypeError, "first argument is a device such as 'cpu', got a DType"),
        (lambda: amp.autocast("cpu", dtype=lz.float32), TypeError, "bfloat16 or float16, got float32"),
        (lambda: amp.autocast("cpu", dtype=lz.int8), TypeError, "bfloat16 or float16, got int8"),
        (lambda: amp.autocast("cpu", dtype="float8"), TypeError, "not a dtype"),
        (lambda: amp.is_autocast_enabled("tpu"), ValueError, "no device 'tpu'"),
        (lambda: amp.get_autocast_dtype(3), TypeError, "is a device such as"),
        (lambda: amp.custom_fwd(device_type="cuda"), ValueError, "no device"),
    ],
)
def test_bad_arguments(make, error, message):
    with pytest.raises(error, match=message):
        make()
    assert STATE.autocast is None
