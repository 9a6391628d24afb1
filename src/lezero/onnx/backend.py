"""LeZero as a backend of the ``onnx`` package, for its conformance suite and for whoever runs models through that interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import ModelProto
from onnx.backend.base import Backend, BackendRep

from lezero.onnx.module import OnnxModule, as_arrays, load
from lezero.tensor import no_grad


class Prepared(BackendRep):
    """A model that can be run again and again."""

    def __init__(self, module: OnnxModule):
        self.module = module

    def run(self, inputs: Any, **_: Any) -> tuple[Any, ...]:
        """The model's outputs for `inputs`, arrays in order or by name."""
        with no_grad():
            if isinstance(inputs, dict):
                result = self.module(**inputs)
            else:
                result = self.module(*(inputs if isinstance(inputs, (list, tuple)) else [inputs]))
        return tuple(as_arrays(result if isinstance(result, tuple) else (result,)))


class LezeroBackend(Backend):
    """``onnx.backend.base.Backend`` on the CPU."""

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **_: Any) -> Prepared:
        module = load(model)
        module.eval()
        return Prepared(module)

    @classmethod
    def run_model(
        cls, model: ModelProto, inputs: Sequence[np.ndarray], device: str = "CPU", **_: Any
    ) -> tuple[Any, ...]:
        return cls.prepare(model, device).run(inputs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"


prepare, run_model, supports_device = LezeroBackend.prepare, LezeroBackend.run_model, LezeroBackend.supports_device
