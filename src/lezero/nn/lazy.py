"""Layers that learn the number of their inputs from the first one they see, or from a state that is loaded."""

from __future__ import annotations

from inspect import signature
from typing import Any

from lezero.graph.dtype import int64
from lezero.misspelt import unexpected
from lezero.nn.conv import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from lezero.nn.linear import Linear
from lezero.nn.module import Module
from lezero.nn.normalization import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
)
from lezero.nn.parameter import Buffer, Parameter, new_buffer
from lezero.runtime.writes import assign
from lezero.tensor import Tensor, no_grad


class UninitializedParameter(Parameter):
    """A parameter whose shape is not known yet."""

    def __init__(self, requires_grad: bool = True, device: Any = None, dtype: Any = None):
        super().__init__(new_buffer(0, device=device, dtype=dtype), requires_grad)

    def __repr__(self) -> str:
        return "<UninitializedParameter>"


class UninitializedBuffer(Buffer):
    """A buffer whose shape is not known yet."""

    def __init__(self, requires_grad: bool = False, device: Any = None, dtype: Any = None, *, persistent: bool = True):
        super().__init__(new_buffer(0, device=device, dtype=dtype), persistent=persistent)

    def __repr__(self) -> str:
        return "<UninitializedBuffer>"


class _Lazy(Module):
    """Stands in for a layer until its number of inputs is known, and then becomes it.

    Parameters and buffers stay the objects they are, so an optimizer may be made before.
    """

    becomes: type[Module]

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__()
        expected = signature(self.becomes)
        _, *accepted = expected.parameters
        for name in kwargs.keys() - set(accepted):
            raise unexpected(type(self), name, accepted)
        given = expected.bind(0, *args, **kwargs)
        given.apply_defaults()
        self._settings = {k: given.arguments[k] for k in accepted}
        self._learning = self.register_load_state_dict_pre_hook(_learn_from_state)
        self._register_unknown()

    def _register_unknown(self) -> None:
        dtype = self._settings["dtype"]
        self.register_parameter("weight", UninitializedParameter(dtype=dtype))
        self.register_parameter("bias", UninitializedParameter(dtype=dtype) if self._settings["bias"] else None)

    def _inputs(self, x: Tensor) -> int:
        """The number of inputs of a tensor that the layer is called with."""
        raise NotImplementedError

    def _inputs_of(self, weight: tuple[int, ...]) -> int:
        """The number of inputs of a layer with a weight of this shape."""
        raise NotImplementedError

    def has_uninitialized_params(self) -> bool:
        """Whether shapes are still unknown; a layer that has been called has no such method."""
        return True

    def initialize_parameters(self, x: Tensor) -> None:
        """Become the layer for inputs like `x`."""
        self._become(self._inputs(x))

    def _become(self, inputs: int) -> None:
        made = self.becomes(inputs, **self._settings)
        own = {**self._parameters, **self._buffers}
        with no_grad():
            for name, t in own.items():
                if isinstance(t, (UninitializedParameter, UninitializedBuffer)):
                    assign(t, made.__dict__[name].to(t.dtype))
                    t.__class__ = Parameter if isinstance(t, Parameter) else Buffer  # type: ignore[assignment]
        self._learning.remove()
        del self._settings, self._learning
        self.__class__ = self.becomes  # type: ignore[assignment]
        self.__dict__.update({k: v for k, v in made.__dict__.items() if k not in own and not k.startswith("_")})

    def forward(self, input: Tensor) -> Any:
        self.initialize_parameters(input)
        return self.forward(input)  # the layer's own, by now

    def extra_repr(self) -> str:
        return ", ".join(f"{k}={v!r}" for k, v in self._settings.items() if k not in ("device", "dtype"))


def _learn_from_state(module: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
    weight = state.get(f"{prefix}weight", state.get(f"{prefix}running_mean"))
    if weight is not None and len(weight.shape):
        module._become(module._inputs_of(tuple(int(d) for d in weight.shape)))


class LazyLinear(_Lazy):
    """:class:`Linear` without `in_features`: they are the first input's last extent."""

    becomes = Linear

    def _inputs(self, x: Tensor) -> int:
        return int(x.shape[-1])

    def _inputs_of(self, weight: tuple[int, ...]) -> int:
        return weight[-1]


class _LazyConv(_Lazy):
    dims: int

    def _inputs(self, x: Tensor) -> int:
        if x.ndim not in (self.dims + 1, self.dims + 2):
            raise ValueError(
                f"{type(self).__name__}: an input of {self.dims + 2} dimensions (or {self.dims + 1}, without a batch) is needed, "
                f"got shape {tuple(x.shape)}"
            )
        return int(x.shape[-self.dims - 1])

    def _inputs_of(self, weight: tuple[int, ...]) -> int:
        return weight[1] * self._settings["groups"]


class LazyConv1d(_LazyConv):
    """:class:`Conv1d` without `in_channels`: they are the first input's."""

    becomes, dims = Conv1d, 1


class LazyConv2d(_LazyConv):
    """:class:`Conv2d` without `in_channels`: they are the first input's."""

    becomes, dims = Conv2d, 2


class LazyConv3d(_LazyConv):
    """:class:`Conv3d` without `in_channels`: they are the first input's."""

    becomes, dims = Conv3d, 3


class _LazyConvTranspose(_LazyConv):
    def _inputs_of(self, weight: tuple[int, ...]) -> int:
        return weight[0]


class LazyConvTranspose1d(_LazyConvTranspose):
    """:class:`ConvTranspose1d` without `in_channels`: they are the first input's."""

    becomes, dims = ConvTranspose1d, 1


class LazyConvTranspose2d(_LazyConvTranspose):
    """:class:`ConvTranspose2d` without `in_channels`: they are the first input's."""

    becomes, dims = ConvTranspose2d, 2


class LazyConvTranspose3d(_LazyConvTranspose):
    """:class:`ConvTranspose3d` without `in_channels`: they are the first input's."""

    becomes, dims = ConvTranspose3d, 3


class _LazyNorm(_Lazy):
    alone: int | None = None
    """Dimensions of an input without batch, where there may be none."""

    def __init__(
        self,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        bias: bool = True,
    ):
        super().__init__(eps, momentum, affine, track_running_stats, device, dtype, bias)

    def _register_unknown(self) -> None:
        dtype, affine, tracked = (self._settings[k] for k in ("dtype", "affine", "track_running_stats"))
        for name, there in (("weight", affine), ("bias", affine and self._settings["bias"])):
            self.register_parameter(name, UninitializedParameter(dtype=dtype) if there else None)
        for name in ("running_mean", "running_var"):
            self.register_buffer(name, UninitializedBuffer(dtype=dtype) if tracked else None)
        self.register_buffer("num_batches_tracked", new_buffer(dtype=int64) if tracked else None)

    def _inputs(self, x: Tensor) -> int:
        if x.ndim < 2:
            raise ValueError(f"{type(self).__name__}: an input with channels is needed, got shape {tuple(x.shape)}")
        return int(x.shape[0 if x.ndim == self.alone else 1])

    def _inputs_of(self, weight: tuple[int, ...]) -> int:
        return weight[0]


class LazyBatchNorm1d(_LazyNorm):
    """:class:`BatchNorm1d` without `num_features`: they are the first input's channels."""

    becomes = BatchNorm1d


class LazyBatchNorm2d(_LazyNorm):
    """:class:`BatchNorm2d` without `num_features`: they are the first input's channels."""

    becomes = BatchNorm2d


class LazyBatchNorm3d(_LazyNorm):
    """:class:`BatchNorm3d` without `num_features`: they are the first input's channels."""

    becomes = BatchNorm3d


class LazyInstanceNorm1d(_LazyNorm):
    """:class:`InstanceNorm1d` without `num_features`: they are the first input's channels."""

    becomes, alone = InstanceNorm1d, 2


class LazyInstanceNorm2d(_LazyNorm):
    """:class:`InstanceNorm2d` without `num_features`: they are the first input's channels."""

    becomes, alone = InstanceNorm2d, 3


class LazyInstanceNorm3d(_LazyNorm):
    """:class:`InstanceNorm3d` without `num_features`: they are the first input's channels."""

    becomes, alone = InstanceNorm3d, 4
