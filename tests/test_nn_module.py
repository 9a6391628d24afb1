"""Modules: registration, the tree, state, modes, hooks, containers."""

import contextlib
import copy
import pickle

import numpy as np
import pytest

import lezero as lz
from lezero import nn
from lezero.nn import functional as F
from lezero.tensor import Tensor, no_grad, ones, tensor, zeros


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.blocks = nn.ModuleList([nn.Linear(4, 4, bias=False) for _ in range(2)])
        self.scale = nn.Parameter(ones(1))
        self.register_buffer("seen", zeros(2))
        self.register_buffer("scratch", zeros(2), persistent=False)

    def forward(self, x):
        x = self.norm(self.first(x))
        for block in self.blocks:
            x = F.relu(block(x))
        return x * self.scale


NAMES = ["scale", "first.weight", "first.bias", "norm.weight", "norm.bias", "blocks.0.weight", "blocks.1.weight"]
STATE = [
    "scale",
    "seen",
    "first.weight",
    "first.bias",
    "norm.weight",
    "norm.bias",
    "norm.running_mean",
    "norm.running_var",
    "norm.num_batches_tracked",
    "blocks.0.weight",
    "blocks.1.weight",
]


def sample(*shape):
    return tensor(np.random.default_rng(0).normal(size=shape).astype(np.float32))


def test_assigning_registers():
    net = Net()
    assert [n for n, _ in net.named_parameters()] == NAMES
    assert list(net.state_dict()) == STATE
    assert [n for n, _ in net.named_buffers()][:2] == ["seen", "scratch"]
    assert [n for n, _ in net.named_children()] == ["first", "norm", "blocks"]
    assert [n for n, _ in net.named_modules()] == ["", "first", "norm", "blocks", "blocks.0", "blocks.1"]
    assert net.get_submodule("blocks.1") is net.blocks[1]
    assert net.get_parameter("blocks.1.weight") is net.blocks[1].weight
    assert net.get_buffer("norm.running_mean") is net.norm.running_mean


def test_registration_moves_with_what_is_assigned():
    net = Net()
    net.first = None
    assert net.first is None and "first.weight" not in net.state_dict()
    net.scale = nn.Linear(1, 1)
    assert "scale.weight" in net.state_dict() and net.get_submodule("scale") is net.scale
    del net.norm
    assert not any(n.startswith("norm") for n in net.state_dict())
    net.extra = nn.Buffer(zeros(3), persistent=False)
    assert "extra" in dict(net.named_buffers()) and "extra" not in net.state_dict()
    net.seen = ones(2)
    assert dict(net.named_buffers())["seen"].numpy().tolist() == [1, 1]


def test_assigning_before_the_base_is_initialised_works():
    class Early(nn.Module):
        def __init__(self):
            self.layer = nn.Linear(2, 2)
            super().__init__()

    assert list(Early().state_dict()) == ["layer.weight", "layer.bias"]


def test_wrong_assignments_are_refused():
    net = Net()
    with pytest.raises(TypeError, match=r"Net\.scale is a parameter.*Parameter or None.*Tensor"):
        net.scale = ones(1)
    with pytest.raises(TypeError, match=r"Net\.first is a module"):
        net.first = ones(1)
    with pytest.raises(TypeError, match=r"Net\.seen is a buffer"):
        net.seen = 3
    with pytest.raises(KeyError, match="dot"):
        net.register_buffer("a.b", None)
    with pytest.raises(KeyError, match="already has"):
        net.register_parameter("forward", None)
    with pytest.raises(TypeError, match="buffer"):
        net.register_buffer("x", 3)
    with pytest.raises(AttributeError, match="'Net' object has no attribute 'frist'"):
        _ = net.frist
    with pytest.raises(NotImplementedError, match="Net2 does not define forward"):
        type("Net2", (nn.Module,), {})()(1)
    with pytest.raises(AttributeError, match=r"no module 'blocks\.7'"):
        net.get_submodule("blocks.7")
    with pytest.raises(RuntimeError, match="int64"):
        nn.Parameter(tensor([1, 2]))


def test_a_tied_parameter_is_one_parameter_with_two_names_in_the_state():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x):
            return self.head(self.embed(x))

    net = Tied()
    assert [n for n, _ in net.named_parameters()] == ["embed.weight"]
    assert len(list(net.named_parameters(remove_duplicate=False))) == 2
    assert list(net.state_dict()) == ["embed.weight", "head.weight"]
    net(tensor([1, 2])).sum().backward()
    assert net.head.weight.grad is net.embed.weight.grad is not None
    twin = copy.deepcopy(net)
    assert twin.head.weight is twin.embed.weight and twin.embed.weight is not net.embed.weight
    net.double()
    assert net.head.weight is net.embed.weight and net.head.weight.dtype.name == "float64"


def test_state_shares_values_and_loading_copies_them():
    net, other = Net(), Net()
    state = net.state_dict()
    with no_grad():
        net.scale.fill_(3.0)
    assert state["scale"].item() == 3.0 and not state["scale"].requires_grad
    assert net.state_dict(keep_vars=True)["scale"] is net.scale
    result = other.load_state_dict(state)
    assert repr(result) == "<All keys matched successfully>"
    for name, value in other.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), state[name].numpy())
    with no_grad():
        net.scale.fill_(4.0)
    assert other.scale.item() == 3.0


def test_loading_takes_arrays_and_converts_dtypes():
    net = nn.Linear(2, 2)
    net.load_state_dict({"weight": np.eye(2), "bias": np.array([1, 2])})
    assert net.weight.dtype.name == "float32" and net.bias.numpy().tolist() == [1, 2]


def test_a_state_that_does_not_fit_changes_nothing_and_says_all_that_is_wrong():
    net = Net()
    before = {k: v.numpy().copy() for k, v in net.state_dict().items()}
    state = {k: v + 1 for k, v in net.state_dict().items()}
    del state["norm.bias"]
    state["extra"] = ones(1)
    state["first.weight"] = ones(2, 2)
    with pytest.raises(RuntimeError) as e:
        net.load_state_dict(state)
    for part in (
        "Net",
        "nothing was loaded",
        "first.weight",
        "(4, 3)",
        "(2, 2)",
        "missing: norm.bias",
        "unexpected: extra",
    ):
        assert part in str(e.value)
    with pytest.raises(RuntimeError, match=r"first\.weight"):
        net.load_state_dict(state, strict=False)
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), before[name])
    del state["first.weight"]
    result = net.load_state_dict(state, strict=False)
    assert result.missing_keys == ["first.weight", "norm.bias"] and result.unexpected_keys == ["extra"]
    np.testing.assert_array_equal(net.scale.numpy(), before["scale"] + 1)


def test_loading_without_strict_is_pytorchs():
    """What is loaded and what is listed, for states that lack names, have others, or both; without strict and with."""
    torch = pytest.importorskip("torch")

    def build(nn):
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

    full = {k: v.numpy() + 1 for k, v in build(nn).state_dict().items()}
    drops = [(), ("0.bias",), ("1.num_batches_tracked",), ("1.running_mean", "2.weight"), tuple(full)]
    for drop in drops:
        for more in ({}, {"2.extra": np.ones(2, "f4"), "other.weight": np.ones(1, "f4")}):
            state = {k: v for k, v in full.items() if k not in drop} | more
            theirs_state = {k: torch.tensor(v) for k, v in state.items()}
            ours, theirs = build(nn), build(torch.nn)
            theirs.load_state_dict({k: torch.tensor(v.numpy()) for k, v in ours.state_dict().items()})
            before = {k: v.numpy().copy() for k, v in ours.state_dict().items()}
            fits = not more and set(drop) <= {"1.num_batches_tracked"}
            for module, given in ((ours, state), (theirs, theirs_state)):
                with contextlib.nullcontext() if fits else pytest.raises(RuntimeError):
                    module.load_state_dict(given)
            if not fits:
                assert all(v.numpy().tobytes() == before[k].tobytes() for k, v in ours.state_dict().items())
            result, want = ours.load_state_dict(state, strict=False), theirs.load_state_dict(theirs_state, strict=False)
            assert result.missing_keys == want.missing_keys
            assert sorted(result.unexpected_keys) == sorted(want.unexpected_keys)
            for name, value in theirs.state_dict().items():
                np.testing.assert_array_equal(ours.state_dict()[name].numpy(), value.numpy())


def test_assign_puts_the_given_tensors_in_place():
    net = nn.Linear(2, 2)
    net.weight.requires_grad_(False)
    state = {"weight": ones(2, 2, dtype="float64"), "bias": nn.Parameter(zeros(2))}
    net.load_state_dict(state, assign=True)
    assert isinstance(net.weight, nn.Parameter) and net.weight.dtype.name == "float64" and not net.weight.requires_grad
    assert net.bias is state["bias"]


def test_extra_state_and_state_hooks():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.count = 0

        def get_extra_state(self):
            return {"count": self.count}

        def set_extra_state(self, state):
            self.count = state["count"]

    net, other = nn.Sequential(Counting()), nn.Sequential(Counting())
    net[0].count = 5
    other.load_state_dict(net.state_dict())
    assert other[0].count == 5

    layer = nn.Linear(2, 2)
    layer.register_state_dict_post_hook(lambda m, state, prefix, meta: state.update({prefix + "note": ones(1)}))
    assert "note" in layer.state_dict()

    def drop_note(m, state, prefix, meta, strict, missing, unexpected, errors):
        state.pop(prefix + "note")

    layer.register_load_state_dict_pre_hook(drop_note)
    state = layer.state_dict()
    layer.load_state_dict(state)
    assert "note" in state  # hooks work on a copy
    layer.register_load_state_dict_post_hook(lambda m, keys: keys.missing_keys.clear())
    layer.load_state_dict({"note": ones(1), "weight": ones(2, 2)}, strict=False)


def test_modes():
    net = Net()
    assert net.training and not net.eval().training and not net.norm.training
    net.train()
    assert net.norm.training
    with pytest.raises(ValueError, match="train"):
        net.train("yes")


def test_frozen_parameters_get_no_gradient():
    net = Net()
    net.first.requires_grad_(False)
    net(sample(5, 3)).sum().backward()
    assert net.first.weight.grad is None and net.norm.weight.grad is not None
    net.zero_grad()
    assert net.norm.weight.grad is None
    net(sample(5, 3)).sum().backward()
    net.zero_grad(set_to_none=False)
    assert not net.norm.weight.grad.numpy().any()


def test_conversion_keeps_the_parameter_objects_and_integers():
    net = Net()
    weight, mean = net.first.weight, net.norm.running_mean
    net(sample(5, 3)).sum().backward()
    for change, name in (("half", "float16"), ("bfloat16", "bfloat16"), ("double", "float64"), ("float", "float32")):
        getattr(net, change)()
        assert net.first.weight is weight and weight.dtype.name == weight.grad.dtype.name == name
        assert net.norm.running_mean is mean and mean.dtype.name == name
        assert net.norm.num_batches_tracked.dtype.name == "int64"
    net.to("float64").to("cpu")
    assert weight.dtype.name == "float64" and weight.requires_grad
    net(sample(5, 3).double()).sum().backward()
    with pytest.raises(TypeError, match="int64"):
        net.to("int64")


def test_apply_visits_children_first():
    seen = []
    nn.Sequential(nn.Linear(1, 1), nn.ReLU()).apply(lambda m: seen.append(type(m).__name__))
    assert seen == ["Linear", "ReLU", "Sequential"]


def test_copies_are_independent():
    net = Net()
    net.first.register_forward_hook(lambda m, a, y: y)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(nn.Sequential(nn.Linear(2, 3), nn.GELU())))):
        assert all(p.requires_grad for p in twin.parameters())
    twin = copy.deepcopy(net)
    assert type(twin.first.weight) is nn.Parameter
    with no_grad():
        twin.scale.fill_(9.0)
    assert net.scale.item() == 1.0
    assert list(twin.state_dict()) == STATE


def test_repr_is_a_tree():
    assert repr(nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.ReLU()))) == (
        "Sequential(\n  (0): Linear(in_features=2, out_features=3, bias=True)\n  (1): Sequential(\n    (0): ReLU()\n  )\n)"
    )


# -- hooks ----------------------------------------------------------------------------------------------------


def test_forward_hooks_see_and_replace():
    layer, log = nn.Linear(3, 2), []
    pre = layer.register_forward_pre_hook(lambda m, args: log.append("pre") or (args[0] * 2,))
    post = layer.register_forward_hook(lambda m, args, y: log.append("post") or y + 1)
    x = sample(4, 3)
    expected = F.linear(x * 2, layer.weight, layer.bias) + 1
    np.testing.assert_allclose(layer(x).detach().numpy(), expected.detach().numpy(), rtol=1e-6)
    assert log == ["pre", "post"]
    pre.remove(), post.remove()
    layer(x)
    assert log == ["pre", "post"]
    first = layer.register_forward_hook(lambda m, a, y: log.append(1))
    with layer.register_forward_hook(lambda m, a, y: log.append(0), prepend=True):
        layer(x)
    assert log[-2:] == [0, 1]
    first.remove()


def test_forward_hooks_with_keywords_and_after_a_failure():
    class Keyed(nn.Module):
        def forward(self, x, *, by=1):
            if by is None:
                raise ZeroDivisionError
            return x * by

    m, log = Keyed(), []
    m.register_forward_pre_hook(lambda m, args, kwargs: (args, {"by": kwargs["by"] or kwargs["by"]}), with_kwargs=True)
    m.register_forward_hook(lambda m, args, kwargs, y: log.append(kwargs), with_kwargs=True, always_call=True)
    assert m(2, by=3) == 6
    with pytest.raises(ZeroDivisionError):
        m(2, by=None)
    assert log == [{"by": 3}, {"by": None}]


def test_backward_hooks_see_what_pytorchs_see():
    torch = pytest.importorskip("torch")
    ours, theirs = nn.Linear(3, 2), torch.nn.Linear(3, 2)
    theirs.load_state_dict({k: torch.tensor(v.numpy()) for k, v in ours.state_dict().items()})
    seen = []

    def hook(m, grad_input, grad_output):
        seen.append((grad_input[0].detach().numpy(), grad_output[0].detach().numpy()))
        return (grad_input[0] * 2,)

    def pre_hook(m, grad_output):
        return (grad_output[0] * 3,)

    ours.register_full_backward_hook(hook), theirs.register_full_backward_hook(hook)
    ours.register_full_backward_pre_hook(pre_hook), theirs.register_full_backward_pre_hook(pre_hook)
    x = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
    a, b = tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    (ours(a) ** 2).sum().backward(), (theirs(b) ** 2).sum().backward()
    for mine, other in zip(*seen):
        np.testing.assert_allclose(mine, other, rtol=1e-5)
    np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-5)
    np.testing.assert_allclose(ours.weight.grad.numpy(), theirs.weight.grad.numpy(), rtol=1e-5)


def test_a_backward_hook_of_a_first_layer_is_called():
    layer, seen = nn.Linear(3, 2), []
    layer.register_full_backward_hook(lambda m, gi, go: seen.append((gi, go[0].shape)))
    layer(sample(4, 3)).sum().backward()
    assert seen == [((None,), (4, 2))]


# -- containers -----------------------------------------------------------------------------------------------


def test_sequential():
    a, b, c = nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)
    net = nn.Sequential(a, b)
    assert len(net) == 2 and net[-1] is b and list(net) == [a, b]
    net.append(c)
    assert list(net.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert type(net[1:]) is nn.Sequential and list(net[1:].state_dict()) == ["2.weight", "2.bias"]
    net[1] = nn.GELU()
    del net[0]
    assert [type(m).__name__ for m in net] == ["GELU", "Linear"] and "1.weight" in net.state_dict()
    named = nn.Sequential({"fc": a, "act": b})
    assert named.fc is a and list(named.state_dict()) == ["fc.weight", "fc.bias"]
    assert [type(m) for m in nn.Sequential(a) + nn.Sequential(b)] == [nn.Linear, nn.ReLU]
    with pytest.raises(IndexError, match=r"Sequential.*5"):
        net[5]
    with pytest.raises(TypeError, match="Module"):
        nn.Sequential(3)


def test_module_list_and_dict():
    a, b = nn.Linear(1, 1), nn.ReLU()
    items = nn.ModuleList([a])
    items += [b]
    items.insert(0, nn.Tanh())
    assert [type(m).__name__ for m in items] == ["Tanh", "Linear", "ReLU"] and items[1:][0] is a
    assert items.pop() is b and len(items) == 2
    table = nn.ModuleDict({"relu": b})
    table["fc"] = a
    assert list(table) == ["relu", "fc"] and table["fc"] is a and "fc" in table and len(table) == 2
    assert table.pop("relu") is b and list(table.state_dict()) == ["fc.weight", "fc.bias"]
    with pytest.raises(KeyError, match="already has"):
        table["training"] = b
    with pytest.raises(KeyError):
        table["none"]


def test_parameter_list_and_dict():
    items = nn.ParameterList([ones(2), nn.Parameter(ones(3))])
    items.append(zeros(1))
    assert len(items) == 3 and all(isinstance(p, nn.Parameter) for p in items)
    assert list(items.state_dict()) == ["0", "1", "2"] and items[-1].shape == (1,)
    items[0] = zeros(4)
    assert items[0].shape == (4,) and len(list(items.parameters())) == 3
    table = nn.ParameterDict({"a": ones(2)})
    table["b"] = zeros(3)
    assert list(table.keys()) == ["a", "b"] and list(table.state_dict()) == ["a", "b"] and table.get("c") is None
    del table["a"]
    assert len(table) == 1 and isinstance(table["b"], Tensor)


def test_layers_take_a_dtype_and_refuse_a_device_that_is_not_there():
    for layer in (
        nn.Linear(2, 3, device="cpu", dtype="float64"),
        nn.Conv2d(2, 3, 3, dtype="bfloat16"),
        nn.BatchNorm1d(3, dtype="float16"),
        nn.MultiheadAttention(4, 2, dtype="float64"),
        nn.PReLU(dtype="float64"),
    ):
        assert len({p.dtype for p in layer.parameters()}) == 1 and next(layer.parameters()).dtype.name != "float32"
    for make in (lambda: nn.Linear(2, 3, device="cuda"), lambda: nn.LayerNorm(3, device="cuda:1")):
        with pytest.raises(ValueError, match="cuda"):
            make()


# -- errors say which layer -----------------------------------------------------------------------------------


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(1, 4, 3), nn.Conv2d(3, 4, 3)])

    def forward(self, x):
        for conv in self.convs:
            x = conv(x)
        return x


class Unprintable(nn.Module):
    def extra_repr(self):
        raise AttributeError("half-built")

    def forward(self, x):
        return x @ x


@pytest.mark.parametrize(
    ("model", "shape", "note"),
    [
        (
            lambda: nn.Sequential(nn.Linear(3, 128), nn.ReLU(), nn.Linear(12, 10)),
            (2, 3),
            "in layer 2 (Linear(in_features=12, out_features=10, bias=True)) of Sequential",
        ),
        (
            lambda: nn.Sequential(nn.ReLU(), Blocks()),
            (1, 1, 9, 9),
            "in layer 1.convs.1 (Conv2d(3, 4, kernel_size=(3, 3), stride=(1, 1))) of Sequential",
        ),
        (lambda: nn.Linear(3, 4), (2, 5), "in Linear(in_features=3, out_features=4, bias=True)"),
        (lambda: nn.Sequential(nn.LayerNorm(3)), (2, 5), "in layer 0 (LayerNorm((3,), eps=1e-05, elementwise_affine=True)) of Sequential"),
        (lambda: nn.Sequential(Unprintable()), (2, 5), "in layer 0 (Unprintable) of Sequential"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("how", ["called", "captured", "hooked"])
def test_errors_name_the_layer_they_come_from(model, shape, note, how):
    model = model()
    if how == "hooked":
        for m in model.modules():
            m.register_forward_hook(lambda *_: None)
    call = lz.jit(model) if how == "captured" else model
    with pytest.raises(ValueError) as caught:
        call(lz.ones(*shape))
    assert str(caught.value).splitlines()[1:] == [note]


def test_a_layer_used_by_a_module_it_is_no_part_of_is_named_by_itself():
    inner = nn.Linear(3, 4)

    class Outer(nn.Module):
        def forward(self, x):
            return inner(x)

    with pytest.raises(ValueError) as caught:
        Outer()(lz.ones(2, 2))
    assert str(caught.value).splitlines()[1:] == ["in Linear(in_features=3, out_features=4, bias=True)"]


class Own(Exception):
    pass


@pytest.mark.parametrize(
    "error", [ValueError("as it was"), Own("as it was"), KeyError("as it was"), ValueError("two", 2)]
)
def test_an_error_of_the_users_own_code_is_left_as_it_is_and_gets_a_note(error):
    class Raising(nn.Module):
        def forward(self, x):
            raise error

    with pytest.raises(type(error)) as caught:
        nn.Sequential(Raising())(lz.ones(2))
    assert caught.value is error and error.args in (("as it was",), ("two", 2))
    assert error.__notes__ == ["in layer 0 (Raising()) of Sequential"]


# layer -> shapes that it does not take
MISFITS = {
    "Linear": (lambda: nn.Linear(3, 4), (2, 5)),
    "Bilinear": (lambda: nn.Bilinear(2, 3, 4), (2, 5), (2, 5)),
    "Conv1d": (lambda: nn.Conv1d(3, 4, 3), (2, 5, 9)),
    "Conv2d": (lambda: nn.Conv2d(3, 4, 3), (2, 5, 9, 9)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(3, 4, 3), (2, 5, 9, 9)),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(3), (2, 5)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(3), (2, 5, 9, 9)),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(3, affine=True), (2, 5, 9, 9)),
    "LayerNorm": (lambda: nn.LayerNorm(3), (2, 5)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), (2, 5, 9)),
    "RMSNorm": (lambda: nn.RMSNorm(3), (2, 5)),
    "LocalResponseNorm": (lambda: nn.LocalResponseNorm(2), (5,)),
    "Embedding": (lambda: nn.Embedding(3, 4), (2, 5)),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(4, 2), (2, 5), (2, 5), (2, 5)),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(4, 2), (2, 5)),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), (5,)),
    "AvgPool2d": (lambda: nn.AvgPool2d(2), (5,)),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d(2), (5,)),
    "Softmax": (lambda: nn.Softmax(2), (5,)),
    "GLU": (nn.GLU, (5,)),
    "PReLU": (lambda: nn.PReLU(3), (2, 5)),
    "Flatten": (lambda: nn.Flatten(2, 3), (5,)),
    "Unflatten": (lambda: nn.Unflatten(0, (2, 2)), (5,)),
    "ReflectionPad1d": (lambda: nn.ReflectionPad1d(9), (2, 5)),
    "Upsample": (lambda: nn.Upsample(3), (5,)),
    "PixelShuffle": (lambda: nn.PixelShuffle(2), (2, 5, 3, 3)),
    "Dropout2d": (nn.Dropout2d, (5,)),
    "CrossEntropyLoss": (nn.CrossEntropyLoss, (2, 5), (3, 5)),
}  # fmt: skip


@pytest.mark.parametrize("kind", MISFITS)
def test_a_layer_of_any_kind_is_named_with_its_path(kind):
    make, *shapes = MISFITS[kind]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Identity(), make()])

        def forward(self, *inputs):
            return self.layers[1](*inputs)

    with pytest.raises((ValueError, TypeError, IndexError), match=rf"\nin layer layers\.1[.\w]* \(({kind}|Multihead)"):
        Net()(*(lz.ones(*shape) for shape in shapes))


@pytest.mark.parametrize("kind", MISFITS)
@pytest.mark.parametrize(
    ("given", "says"), [(None, "None"), (np.ones((2, 5)), "a numpy array (lz.tensor makes a tensor of it)")]
)
def test_a_layer_says_that_it_was_given_something_else_than_tensors(kind, given, says):
    make, *shapes = MISFITS[kind]
    with pytest.raises((TypeError, AttributeError, ValueError, IndexError)) as caught:
        nn.ModuleList([make()])[0](*[given] * len(shapes))
    assert str(caught.value).endswith(f", which was given {says} and takes tensors")


def test_a_state_inside_a_checkpoint_is_pointed_out():
    net = nn.Linear(2, 2)
    with pytest.raises(RuntimeError, match=r"did you mean load_state_dict\(state\['model'\]\)\?$"):
        net.load_state_dict({"optimizer": {"state": {}}, "model": net.state_dict()})
    with pytest.raises(RuntimeError, match=r"returns the rest$"):
        net.load_state_dict({"model": {"something": 1}})


@pytest.mark.parametrize(
    "key, value, message", [(1, lz.ones(1), "unexpected: 1"), ("bias", np.array(["a"]), "bias: dtype.*<U1")]
)
def test_states_of_what_is_no_tensor_by_name_name_it(key, value, message):
    net = nn.Linear(2, 1)
    with pytest.raises(RuntimeError, match=message):
        net.load_state_dict({**net.state_dict(), key: value})


@pytest.mark.parametrize("assign", [False, True])
def test_states_may_be_loaded_between_the_calls_of_a_captured_function(assign):
    net = nn.BatchNorm1d(3).eval()
    f = lz.jit(net)
    x = lz.ones(2, 3)
    for k in range(4):
        state = {n: lz.tensor(np.full(t.shape, k + 1.0, np.float32)) for n, t in net.state_dict().items()}
        net.load_state_dict(state, assign=assign and k == 0)
        np.testing.assert_allclose(f(x).numpy(), net(x).numpy(), rtol=1e-6)
