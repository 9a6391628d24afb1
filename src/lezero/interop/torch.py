"""PyTorch's modules as LeZero's, by way of ``torch.export``."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from functools import partial
from io import StringIO
from typing import Any

import numpy as np

from lezero import nn
from lezero.interop.program import ConversionError, Program
from lezero.nn.nested import parent_of
from lezero.switched import switched
from lezero.tensor import Tensor, tensor
from lezero.tensor.exchange import borrowed


def from_torch(
    module: Any,
    example: Any,
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = "auto",
    copy: bool = False,
) -> TorchModule:
    """A PyTorch module as a LeZero module, which trains and infers.

    Parameters
    ----------
    module : torch.nn.Module
        It is exported twice, for training and for inference; which of them runs is decided by ``.train()`` and ``.eval()`` as
        for any module.  If it is training, parts of it that are not (frozen batch norm) stay so.
    example : torch.Tensor, or a tuple of arguments of ``module.forward``
        Arguments may be tensors, also LeZero's or NumPy arrays, numbers, None, and lists, tuples and dicts of them.  Numbers, flags and None are part of what is
        converted: other ones are refused when the result is called.
    kwargs : optional
        Arguments given by name.
    dynamic_shapes : optional
        As in ``torch.export.export``, None for extents that are all fixed; by default every extent that may differ from call to
        call does.  An extent of 1 in `example` is fixed.
    copy : bool
        Whether parameters are copied.  If not, each lies in `module`'s memory, where it is row-major, until LeZero first changes
        it: a training step here leaves `module` as it was.  Up to then changes that PyTorch makes in place are seen here, and
        must not be made while results are still to be computed.  Buffers, such as running statistics, are always copied.

    Returns
    -------
    TorchModule
        Its parameters and buffers have the names they have in `module`, those that share memory there are one here, and
        ``state_dict`` has the same keys: ``load_state_dict`` takes what either of them saves.

    Raises
    ------
    ConversionError
        If the module uses an operation that LeZero lacks, or ``torch.export`` refuses it.
    ImportError
        If PyTorch is missing.
    """
    try:
        import torch
    except ImportError:
        raise ImportError("from_torch needs PyTorch, which is not installed: pip install torch") from None
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"from_torch: a torch.nn.Module is needed, got {type(module).__name__}")
    args, named = torch.utils._pytree.tree_map(
        partial(_theirs, torch),
        (tuple(example) if isinstance(example, (tuple, list)) else (example,), dict(kwargs or {})),
    )
    programs = {}
    for training in (True, False):
        with _mode(module, training):
            exported = _exported(torch, module, args, named, dynamic_shapes)
            programs[training] = Program(exported.graph, exported)
    return TorchModule(programs, module, copy).train(module.training)


@contextmanager
def _mode(module: Any, training: bool) -> Iterator[None]:
    """The module in training or not, and as it was afterwards."""
    before = [(m, m.training) for m in module.modules()]
    if module.training is not training:
        module.train(training)
    try:
        yield
    finally:
        for m, was in before:
            m.training = was


def _theirs(torch: Any, value: Any) -> Any:
    """A tensor of LeZero's or an array as one of PyTorch's, anything else as it is."""
    if isinstance(value, Tensor):
        return torch.from_dlpack(value.detach())
    return torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray) else value


def _is_causal(mask: Any, is_causal: bool | None = None, size: Any = None) -> bool:
    """Whether the mask is said to be causal: PyTorch's compares it, which exporting cannot do, only to be faster."""
    return is_causal is True


@contextmanager
def _quietly() -> Iterator[None]:
    """PyTorch's logs and printed graphs say at length what an error says, or what the first call that does not fit will."""
    before, written = logging.root.manager.disable, StringIO()
    logging.disable(max(before, logging.WARNING))
    try:
        with redirect_stderr(written):
            yield
    finally:
        logging.disable(before)
    sys.stderr.write(written.getvalue())  # the module's own; what is refused has its graph there


def _exported(torch: Any, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic: Any) -> Any:
    try:
        if dynamic == "auto":
            free = torch.export.Dim.AUTO
            dynamic = torch.utils._pytree.tree_map(
                lambda x: {k: free for k in range(x.ndim)} if isinstance(x, torch.Tensor) else None,
                dict(inspect.signature(module.forward).bind(*args, **kwargs).arguments),
            )
        with switched(torch.nn.modules.transformer, "_detect_is_causal_mask", _is_causal), _quietly():
            return torch.export.export(module, args, kwargs, dynamic_shapes=dynamic)
    except Exception as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        advice = (
            "; its code decides by the values of a tensor, which torch.cond does, or a flag that is an argument"
            if "data-dependent" in said
            else ""
        )
        raise ConversionError(f"torch.export refuses {type(module).__name__}: {said}{advice}") from error


def _value(t: Any, copy: bool) -> Tensor:
    """A tensor of PyTorch's, in its memory unless that is to be copied."""
    import torch

    t = t.detach().cpu().contiguous()
    if t.dtype is torch.bfloat16:
        import ml_dtypes

        array: np.ndarray = t.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    else:
        array = t.resolve_conj().resolve_neg().numpy()
    return tensor(array) if copy else borrowed(array)


class TorchModule(nn.Module):
    """What :func:`from_torch` gives: called like the module it was made from; outputs in the same structure."""

    def __init__(self, programs: dict[bool, Program], module: Any, copy: bool):
        super().__init__()
        self._programs = programs
        self._places: dict[str, tuple[nn.Module, str]] = {}
        made: dict[int, Tensor] = {}
        for prefix, part in module.named_modules(remove_duplicate=False):
            for own in (part._parameters, part._buffers):
                for attribute, t in own.items():
                    if t is None:
                        continue
                    if id(t) not in made:
                        value = _value(t, copy or own is part._buffers)
                        made[id(t)] = (
                            nn.Parameter(value, requires_grad=t.requires_grad)
                            if own is part._parameters
                            else nn.Buffer(value, persistent=attribute not in part._non_persistent_buffers_set)
                        )
                    name = f"{prefix}.{attribute}" if prefix else attribute
                    at, last = self._places[name] = parent_of(self, name)
                    setattr(at, last, made[id(t)])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        from torch.utils._pytree import tree_flatten

        program = self._programs[self.training]
        assert program.in_spec is not None and program.out_spec is not None
        names = program.in_spec.children()[1].context
        if set(names) != set(kwargs):
            raise TypeError(f"converted for the arguments by name {sorted(names)}, got {sorted(kwargs)}")
        flat, spec = tree_flatten((args, {name: kwargs[name] for name in names}))
        if spec != program.in_spec:
            raise TypeError(f"converted for arguments of the structure {program.in_spec}, got {spec}")
        state = {name: getattr(module, attribute) for name, (module, attribute) in self._places.items()}
        return program.out_spec.unflatten(program.run(flat, state))
