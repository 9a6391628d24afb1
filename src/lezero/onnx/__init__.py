"""Models in ONNX (https://onnx.ai): reading them as modules.

    model = lz.onnx.load("model.onnx")
    y = model(x)

Needs the ``onnx`` package: ``pip install lezero[onnx]``.
"""

from lezero.onnx import operators  # noqa: F401  (registers them)
from lezero.onnx.module import OnnxModule, load
from lezero.onnx.program import OnnxError

__all__ = ["OnnxError", "OnnxModule", "load"]
