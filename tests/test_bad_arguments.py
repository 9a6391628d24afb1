"""Arguments that are something else than what is meant are refused with the function's and the argument's name."""

import inspect

import numpy as np
import pytest

import lezero as lz
from lezero import nn
from lezero.nn import functional as F

x, image = lz.ones(4), lz.ones(1, 2, 4, 4)


def written(index, value, *shape):
    lz.zeros(*shape)[index] = value


# what is called: (type of the error, what it says)
WRONG = {
    "lz.chunk(x, 0)": (ValueError, "chunk: .* must be 1 or more, got 0"),
    "x.chunk('a')": (TypeError, "chunk: .* is an int, got 'a'"),
    "x.split(1.5)": (TypeError, "split: the size is an int, got 1.5"),
    "x.split([5, -1])": (ValueError, "split: a size must be 0 or more, got -1"),
    "lz.tensor_split(x, 0)": (ValueError, "tensor_split: .* must be 1 or more, got 0"),
    "x.narrow(0, 2, 5)": (ValueError, "narrow: 5 elements from 2 on are not within the extent 4"),
    "x.unbind('a')": (TypeError, "unbind: a dimension is an int, got 'a'"),
    "x.sum(1.5)": (TypeError, r"sum: a dimension is an int, got 1\.5"),
    "x.squeeze('a')": (TypeError, "squeeze: a dimension is an int"),
    "x.sort('a')": (TypeError, "sort: a dimension is an int"),
    "x.topk('a')": (TypeError, "topk: k is an int"),
    "x.topk(-1)": (ValueError, "topk: k must be 0 or more"),
    "x.norm('a')": (TypeError, "norm: p is a number"),
    "lz.ones(3, 3).tril('a')": (TypeError, "tril: diagonal is an int"),
    "lz.ones(3, 3).diagonal('a')": (TypeError, "diagonal: offset is an int"),
    "x.roll('a')": (TypeError, "roll: a shift is an int"),
    "x.repeat(-1)": (ValueError, r"repeat: a count of 0 or more .*, got \(-1,\)"),
    "lz.ones(2, 3).repeat(2)": (ValueError, "repeat: .* each of the 2 dimensions"),
    "x.repeat_interleave(-1)": (ValueError, "repeat_interleave: repeats must be 0 or more, got -1"),
    "x.repeat_interleave('a')": (TypeError, "repeat_interleave: repeats is an int, got 'a'"),
    "x.repeat_interleave(1.5)": (TypeError, r"repeat_interleave: repeats is an int, got 1\.5"),
    "x.repeat_interleave(lz.tensor([1, 2]))": (ValueError, r"repeat_interleave: .* 4 elements of dimension 0.*\(2,\)"),
    "x.repeat_interleave([1, 2])": (ValueError, r"repeat_interleave: .* 4 elements of dimension 0.*\(2,\)"),
    "x.repeat_interleave(lz.tensor([1, -2, 1, 1]))": (ValueError, "repeats must not be negative, got -2"),
    "x.repeat_interleave(lz.tensor([1.0]))": (TypeError, "repeats are integers, got float32"),
    "lz.randn(-1)": (ValueError, r"randn: sizes must not be negative, got \(-1,\)"),
    "lz.rand(2, -1)": (ValueError, r"rand: sizes must not be negative, got \(2, -1\)"),
    "lz.full(-1, 2.0)": (ValueError, "full: sizes must not be negative"),
    "lz.full((2,), 'a')": (TypeError, "full: fill_value is a number, got 'a'"),
    "lz.randint(0, 3, (-2,))": (ValueError, "randint: sizes must not be negative"),
    "lz.randint('a', 3, (2,))": (TypeError, "randint: low is an int"),
    "lz.randint(5)": (TypeError, "randint: a size is needed"),
    "lz.randperm(-1)": (ValueError, "randperm: n must be 0 or more"),
    "lz.arange('a')": (TypeError, "arange: end is a number, got 'a'"),
    "lz.linspace('a', 1, 3)": (TypeError, "linspace: start is a number"),
    "lz.linspace(0, 1, 2.5)": (TypeError, r"linspace: steps is an int, got 2\.5"),
    "lz.eye('a')": (TypeError, "eye: n is an int"),
    "lz.zeros(3).fill_('a')": (TypeError, "fill_: the value is a number, got 'a'"),
    "lz.zeros(3).fill_(None)": (TypeError, "fill_: the value is a number, got None"),
    "lz.zeros(3).normal_(0, -1)": (ValueError, r"normal_: std must be 0\.0 or more, got -1"),
    "lz.zeros(3).uniform_(2, 1)": (ValueError, "uniform_: the upper end must be 2 or more, got 1"),
    "lz.cat([x, 3])": (TypeError, "cat: tensors are joined, number 1 is a int"),
    "lz.stack([3])": (TypeError, "stack: tensors are joined, number 0 is a int"),
    "lz.meshgrid(3)": (TypeError, "meshgrid: coordinates are tensors, got a int"),
    "lz.einsum(x, x)": (TypeError, "einsum: the equation comes first"),
    "x.index_select(0, [1])": (TypeError, "index_select: the index is a tensor of integers, got a list"),
    "x.gather(0, [1])": (TypeError, "gather: the index is a tensor of integers, got a list"),
    "lz.bincount(lz.tensor([-1]))": (ValueError, "bincount: a vector of integers from 0 on"),
    "x.masked_scatter(lz.tensor([True] * 4), lz.zeros(2))": (ValueError, "masked_scatter: the mask has 4 places, the source 2 elements"),
    "x * 'a'": (TypeError, "only integer tensors .* lz.tensor"),
    "written(lz.tensor([True, False, True]), lz.ones(3), 3)": (
        ValueError, r"x\[mask\] = value: the mask holds at 2 places, .* \(2,\) is needed, got shape \(3,\)"),
    "written(lz.tensor([True, False, True]), np.ones((2, 5)), 3, 4)": (ValueError, r"at 2 places.* \(2, 4\) .*shape \(2, 5\)"),
    "written(lz.tensor([0, 1]), lz.ones(3, 3), 4, 3)": (ValueError, r"the index selects \(2, 3\), .*got shape \(3, 3\)"),
    "F.pad(x, 'a')": (TypeError, "pad: a width is an int, got 'a'"),
    "F.pad(x, 1)": (TypeError, "pad: widths are a tuple"),
    "F.dropout(x, 'a')": (TypeError, "dropout: p is a number, got 'a'"),
    "F.interpolate(image, scale_factor='a')": (TypeError, "interpolate: scale_factor is a number"),
    "F.interpolate(image, 2.5)": (TypeError, r"interpolate: size is an int, got 2\.5"),
    "F.conv2d(image, lz.ones(1, 2, 3, 3), padding=-1)": (ValueError, "conv2d: padding is 0 or more, got -1"),
    "nn.utils.clip_grad_norm_([x], 'a')": (TypeError, "clip_grad_norm_: max_norm is a number"),
    "nn.utils.clip_grad_value_([x], 'a')": (TypeError, "clip_grad_value_: clip_value is a number"),
    "lz.data.DataLoader(lz.data.TensorDataset(x), 'a')": (ValueError, "batch_size must be a positive integer .* got 'a'"),
    "nn.Sequential([nn.ReLU()])": (TypeError, r"Sequential\(\*layers\), not as a list"),
    "nn.Sequential(nn.ReLU)": (TypeError, r"got the class ReLU; give an instance, ReLU\("),
    "nn.ModuleList(nn.ReLU())": (TypeError, "ModuleList: a list of modules is needed, got a ReLU"),
    "nn.ModuleDict([3])": (TypeError, "ModuleDict: a dict of modules"),
    "nn.MaxPool2d(0)": (ValueError, "MaxPool2d: kernel_size is 1 or more, got 0"),
    "nn.MaxPool1d(-1)": (ValueError, "MaxPool1d: kernel_size is 1 or more, got -1"),
    "nn.MaxPool2d(2, 0)": (ValueError, "MaxPool2d: stride is 1 or more, got 0"),
    "nn.MaxPool2d(2, dilation=0)": (ValueError, "MaxPool2d: dilation is 1 or more"),
    "nn.MaxPool2d((2, 3), padding=(2, 0))": (ValueError, "MaxPool2d: padding is from 0 to half"),
    "nn.AvgPool2d((2, 0))": (ValueError, "AvgPool2d: kernel_size is 1 or more"),
    "nn.AvgPool1d(2, padding=-1)": (ValueError, "AvgPool1d: padding is from 0 to half"),
    "nn.AvgPool2d(2, divisor_override=0)": (ValueError, "AvgPool2d: divisor_override must not be 0"),
    "nn.AdaptiveAvgPool2d(0)": (ValueError, "AdaptiveAvgPool2d: output_size must be 1 or more, got 0"),
    "nn.AdaptiveMaxPool2d((1, 'a'))": (TypeError, "AdaptiveMaxPool2d: output_size is an int, got 'a'"),
    "nn.Conv2d(1, 1, 3, padding=-1)": (ValueError, "Conv2d: padding is 0 or more"),
    "nn.PixelShuffle(0)": (ValueError, "PixelShuffle: upscale_factor must be 1 or more"),
    "nn.ChannelShuffle(0)": (ValueError, "ChannelShuffle: groups must be 1 or more"),
    "nn.LocalResponseNorm(0)": (ValueError, "LocalResponseNorm: size must be 1 or more"),
    "nn.LeakyReLU('a')": (TypeError, "LeakyReLU: negative_slope is a number, got 'a'"),
    "nn.Softmax('a')": (TypeError, "Softmax: dim is an int, got 'a'"),
}  # fmt: skip


@pytest.mark.parametrize("call", WRONG)
def test_wrong_arguments_are_named(call):
    error, says = WRONG[call]
    with pytest.raises(error, match=says):
        eval(call)


def layers():
    """Every layer with arguments that its annotations say are numbers, and what makes one."""
    for name in nn.__all__:
        layer = getattr(nn, name)
        if isinstance(layer, type) and issubclass(layer, nn.Module):
            for argument in inspect.signature(layer.__init__).parameters.values():
                if argument.annotation in (
                    "int",
                    "float",
                    "IntOrTuple",
                    "int | Sequence[int]",
                    "float | None",
                    "int | None",
                ):
                    yield pytest.param(layer, argument, id=f"{name}.{argument.name}")


NUMBERS = {
    "Sequence[int]": (1,),
    "int": 2,
    "float": 0.5,
    "IntOrTuple": 2,
    "str | IntOrTuple": 0,
    "int | Sequence[int]": 2,
}


@pytest.mark.parametrize(("layer", "wrong"), [*layers()])
@pytest.mark.parametrize("given", ["3", lz.ones(2), object()], ids=["text", "tensor", "object"])
def test_numbers_of_every_layer_are_looked_at(layer, wrong, given):
    needed = [
        p for p in inspect.signature(layer.__init__).parameters.values() if p.default is p.empty and p.name != "self"
    ]
    arguments = {p.name: NUMBERS.get(p.annotation) for p in needed} | {wrong.name: given}
    with pytest.raises(TypeError, match=f"^{layer.__name__}: {wrong.name} is a"):
        layer(**arguments)
    positional = [a for p, a in zip(needed, arguments.values()) if p.name != wrong.name]
    if wrong.default is wrong.empty and not positional:
        with pytest.raises(TypeError, match=f"^{layer.__name__}: {wrong.name} is a"):
            layer(given)


def test_numbers_of_numpy_are_numbers():
    one, three, half = np.int64(1), np.int32(3), np.float32(0.5)
    conv = nn.Conv2d(one, three, (three, one), stride=one, padding=np.int8(0))
    assert conv(image[:, :1]).shape == (1, 3, 2, 4) and conv.kernel_size == (3, 1)
    assert nn.Dropout(half).p == 0.5 and nn.MaxPool2d(np.int64(2))(image).shape == (1, 2, 2, 2)
    assert x.sum(np.int64(0)).shape == () and lz.randn(three).shape == (3,) and x.chunk(np.int64(2))[0].shape == (2,)


def test_a_users_own_layer_takes_what_it_says():
    class Named(nn.Linear):
        def __init__(self, in_features: int, name: float):
            super().__init__(in_features, 2)
            self.name = name

    assert Named(3, "first").name == "first"


def test_repeats_may_be_a_list():
    assert x.repeat_interleave([2, 0, 1, 1]).shape == (4,)
    assert lz.tensor([5, 6]).repeat_interleave([1, 2]).tolist() == [5, 6, 6]


def test_sizes_of_a_recording_may_be_what_a_kernel_covers():
    pooled = lz.jit(lambda t: F.max_pool2d(t, tuple(t.shape[2:])))
    for extent in (4, 4, 6, 5):
        assert pooled(lz.ones(1, 2, extent, extent)).shape == (1, 2, 1, 1)
