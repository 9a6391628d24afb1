"""Models in ONNX (https://onnx.ai): reading them as modules.

    model = lz.onnx.load("model.onnx")
    y = model(x)

Needs the ``onnx`` package: ``pip install 'lezero[onnx]'``.
"""

from lezero.misspelt import suggest_names
from lezero.onnx import operators  # noqa: F401  (registers them)
from lezero.onnx.module import OnnxModule, load
from lezero.onnx.program import OnnxError

__all__ = ["OnnxError", "OnnxModule", "load"]

suggest_names(
    __name__, dict.fromkeys(("export", "save", "dynamo_export"), "lz.export.to_onnx(model, args, path) writes models")
)
