"""Activation layers.  ``inplace=True`` writes the result to the input and returns it; fusion saves the memory without it."""

from __future__ import annotations

from inspect import signature
from typing import Any

from lezero.arguments import need_real, whole
from lezero.misspelt import unexpected
from lezero.nn import functional as F
from lezero.nn.functional.activation import check_form
from lezero.nn.module import Module
from lezero.nn.parameter import Parameter, new_buffer
from lezero.tensor import Tensor


class _Activation(Module):
    """An activation with arguments: `arguments` names the constructor's, with their defaults, in order."""

    arguments: dict[str, Any] = {}
    function: Any
    may_be_in_place = False

    def __init__(self, *values: Any, inplace: bool = False, **named: Any):
        super().__init__()
        name, accepted = type(self).__name__, list(self.arguments)
        if self.may_be_in_place and len(values) == len(accepted) + 1 and isinstance(values[-1], bool):
            values, inplace = values[:-1], values[-1]  # by position
        if inplace and not self.may_be_in_place:
            raise unexpected(type(self), "inplace", accepted)
        for unknown in named.keys() - self.arguments.keys():
            raise unexpected(type(self), unknown, [*accepted, "inplace"] if self.may_be_in_place else accepted)
        if len(values) > len(accepted) or named.keys() & set(accepted[: len(values)]):
            raise TypeError(f"{name}: takes {', '.join(accepted) or 'no arguments'}; got {values} and {named}")
        given = {**self.arguments, **dict(zip(accepted, values)), **named}
        for argument, value in given.items():
            self._check(f"{name}: {argument}", value)
        self.__dict__.update(given)
        self.inplace = inplace

    @staticmethod
    def _check(argument: str, value: Any) -> None:
        if argument.endswith(": dim"):
            if value is not None:
                whole(argument, value)
        else:
            need_real(argument, value)

    def forward(self, input: Tensor) -> Tensor:
        values = [self.__dict__[k] for k in self.arguments]
        return (
            type(self).function(input, *values, inplace=True) if self.inplace else type(self).function(input, *values)
        )

    def extra_repr(self) -> str:
        shown = [f"{k}={self.__dict__[k]}" for k in self.arguments]
        return ", ".join([*shown, "inplace=True"] if self.inplace else shown)


class ReLU(Module):
    __doc__ = F.relu.__doc__

    def __init__(self, inplace: bool = False):
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        return F.relu(input, self.inplace)

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""


def _layer(name: str, function: Any, **arguments: Any) -> Any:
    """A layer class for an activation function; the arguments are the constructor's, with their defaults."""
    body = {
        "__doc__": function.__doc__,
        "__module__": __name__,
        "arguments": arguments,
        "function": staticmethod(function),
        "may_be_in_place": "inplace" in signature(function).parameters,
    }
    return type(name, (_Activation,), body)


ReLU6 = _layer("ReLU6", F.relu6)
LeakyReLU = _layer("LeakyReLU", F.leaky_relu, negative_slope=0.01)
ELU = _layer("ELU", F.elu, alpha=1.0)
SELU = _layer("SELU", F.selu)
CELU = _layer("CELU", F.celu, alpha=1.0)
SiLU = _layer("SiLU", F.silu)
Mish = _layer("Mish", F.mish)
Sigmoid = _layer("Sigmoid", F.sigmoid)
Tanh = _layer("Tanh", F.tanh)
Softplus = _layer("Softplus", F.softplus, beta=1.0, threshold=20.0)
Softsign = _layer("Softsign", F.softsign)
Tanhshrink = _layer("Tanhshrink", F.tanhshrink)
Hardshrink = _layer("Hardshrink", F.hardshrink, lambd=0.5)
Softshrink = _layer("Softshrink", F.softshrink, lambd=0.5)
Threshold = _layer("Threshold", F.threshold, threshold=0.0, value=0.0)
Hardtanh = _layer("Hardtanh", F.hardtanh, min_val=-1.0, max_val=1.0)
Hardsigmoid = _layer("Hardsigmoid", F.hardsigmoid)
Hardswish = _layer("Hardswish", F.hardswish)
LogSigmoid = _layer("LogSigmoid", F.logsigmoid)
GLU = _layer("GLU", F.glu, dim=-1)
Softmax = _layer("Softmax", F.softmax, dim=None)
LogSoftmax = _layer("LogSoftmax", F.log_softmax, dim=None)
Softmin = _layer("Softmin", F.softmin, dim=None)


class GELU(_Activation):
    __doc__ = F.gelu.__doc__
    arguments = {"approximate": "none"}
    function = staticmethod(F.gelu)
    approximate: str

    @staticmethod
    def _check(argument: str, value: Any) -> None:
        check_form(value)  # refused here rather than at the first call


class PReLU(Module):
    """x above 0, else weight · x, with a learnt weight (He et al. 2015).

    Parameters
    ----------
    num_parameters : int, 1 or the number of channels
    init : float, what the weight starts from
    """

    weight: Parameter

    def __init__(self, num_parameters: int = 1, init: float = 0.25, device: Any = None, dtype: Any = None):
        super().__init__()
        self.num_parameters = num_parameters
        self.weight = Parameter(new_buffer(num_parameters, fill=init, device=device, dtype=dtype))

    def forward(self, input: Tensor) -> Tensor:
        return F.prelu(input, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


class RReLU(Module):
    """x above 0, else x times a slope: in training uniform between `lower` and `upper`, otherwise their mean (Xu et al. 2015)."""

    def __init__(self, lower: float = 1 / 8, upper: float = 1 / 3, inplace: bool = False):
        super().__init__()
        if lower > upper:
            raise ValueError(f"RReLU: lower={lower} is above upper={upper}")
        self.lower, self.upper, self.inplace = lower, upper, inplace

    def forward(self, input: Tensor) -> Tensor:
        return F.rrelu(input, self.lower, self.upper, self.training, self.inplace)

    def extra_repr(self) -> str:
        return f"lower={self.lower}, upper={self.upper}" + (", inplace=True" if self.inplace else "")


class Softmax2d(Module):
    """Softmax over the channels of (batch, channels, height, width) or (channels, height, width)."""

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim not in (3, 4):
            raise ValueError(f"Softmax2d: an input of 3 or 4 dimensions is needed, got shape {tuple(input.shape)}")
        return F.softmax(input, -3)
