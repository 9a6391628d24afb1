"""PyTorch's tensors where ours are expected: taken over, or refused by their full name."""

import numpy as np
import pytest

import lezero as lz
from lezero import nn
from lezero.nn import functional as F

torch = pytest.importorskip("torch")

X, THEIRS = lz.ones(3, 4), torch.ones(3, 4)


@pytest.mark.parametrize(
    "call",
    {
        "ours first": lambda: X + THEIRS,
        "theirs first": lambda: THEIRS * X,
        "compared": lambda: X == THEIRS,
        "product": lambda: X @ THEIRS,
        "function": lambda: lz.add(X, THEIRS),
        "weight": lambda: F.linear(X, THEIRS),
        "layer": lambda: nn.Linear(4, 2)(THEIRS),
        "among others": lambda: lz.cat([X, THEIRS]),
        "written": lambda: X.__setitem__(0, THEIRS[0]),
    }.items(),
    ids=lambda item: item[0],
)
def test_tensors_of_pytorch_among_ours_are_refused_by_their_full_name(call):
    with pytest.raises(TypeError, match=r"torch\.Tensor \(lz\.tensor makes a tensor of it\)"):
        call[1]()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_tensor_copies_pytorchs(dtype):
    theirs = torch.tensor([[0, 1], [1, 0]]).to(dtype)
    ours = lz.tensor(theirs)
    theirs.zero_()
    assert str(ours.dtype).removeprefix("lezero.") == str(dtype).removeprefix("torch.")
    assert ours.tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("keep_vars", [False, True])
def test_a_state_dict_of_pytorch_loads_as_it_is(dtype, keep_vars):
    make = lambda nn: nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    theirs, ours = make(torch.nn).to(dtype), make(nn)
    ours.load_state_dict(theirs.state_dict(keep_vars=keep_vars))
    for name, value in theirs.state_dict().items():
        np.testing.assert_array_equal(ours.state_dict()[name].numpy(), value.double().numpy(), err_msg=name)
    with torch.no_grad():
        theirs[0].weight.zero_()
    assert ours[0].weight.abs().sum().item() > 0, "the memory is not shared"


def test_a_state_dict_of_pytorch_that_does_not_fit_loads_nothing():
    ours = nn.Linear(4, 2)
    before = ours.weight.numpy().copy()
    with pytest.raises(RuntimeError, match=r"bias: the module has shape \(2,\), the state has \(3,\)"):
        ours.load_state_dict({"weight": torch.zeros(2, 4), "bias": torch.zeros(3)})
    assert (ours.weight.numpy() == before).all()


def test_an_encoder_takes_all_that_pytorchs_does():
    make = lambda nn: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False, mask_check=False
    )
    theirs, ours = make(torch.nn).eval(), make(nn).eval()
    ours.load_state_dict(theirs.state_dict())
    x, padding = torch.randn(2, 5, 8), torch.arange(5).expand(2, 5) >= torch.tensor([[5], [3]])
    wanted = theirs(x, src_key_padding_mask=padding).detach().numpy()
    got = ours(lz.tensor(x), src_key_padding_mask=lz.tensor(padding)).detach().numpy()
    np.testing.assert_allclose(got, wanted, atol=1e-5)


class Theirs(torch.utils.data.Dataset):
    """Pairs of what PyTorch's datasets hold."""

    def __init__(self, dtype):
        self.values = torch.arange(12).reshape(6, 2).to(dtype)

    def __len__(self):
        return 6

    def __getitem__(self, i):
        return {"x": self.values[i], "label": i}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8], ids=str)
def test_a_loader_makes_batches_of_pytorchs_datasets(dtype):
    batches = list(lz.data.DataLoader(Theirs(dtype), batch_size=4))
    assert [type(b["x"]) for b in batches] == [lz.Tensor] * 2
    assert lz.cat([b["x"] for b in batches]).tolist() == np.arange(12).reshape(6, 2).tolist()
    assert str(batches[0]["x"].dtype).removeprefix("lezero.") == str(dtype).removeprefix("torch.")
    single = next(iter(lz.data.DataLoader(Theirs(dtype), batch_size=None)))["x"]
    assert type(single) is lz.Tensor and single.tolist() == [0, 1]


def test_items_of_a_batch_that_are_tensors_and_others_are_refused():
    with pytest.raises(TypeError, match="item is a tensor in one and a list in another"):
        lz.data.default_collate([torch.ones(2), [1.0, 2.0]])


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model."])
def test_prefixes_of_wrapped_modules_are_recognised(prefix):
    state = {prefix + k: v for k, v in nn.Linear(2, 3).state_dict().items()}
    with pytest.raises(RuntimeError, match=r"did you mean load_state_dict\((\{.*\})\)\?") as caught:
        nn.Linear(2, 3).load_state_dict(state)
    advice = str(caught.value).partition("load_state_dict({")[2].removesuffix(")?")
    nn.Linear(2, 3).load_state_dict(eval("{" + advice, {"state": state}))


def test_a_prefix_that_does_not_help_is_not_advised():
    with pytest.raises(RuntimeError) as caught:
        nn.Linear(2, 3).load_state_dict({"module.kernel": lz.ones(3, 2)})
    assert "did you mean" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_program_of_torchscript_is_named(tmp_path):
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)), tmp_path / "x.pt")
    with pytest.raises(lz.io.PthError, match=r"it is a TorchScript program; .* for torch\.save"):
        lz.io.load_pth(tmp_path / "x.pt")
