"""Models for other runtimes.

lezero.export.to_onnx(model, (x,), "model.onnx", dynamic_shapes={"x": {0: "batch"}})
"""

from lezero.export.errors import ExportError
from lezero.export.onnx import Dim, to_onnx
from lezero.export.verify import VerificationError
from lezero.misspelt import suggest_names

__all__ = ["Dim", "ExportError", "VerificationError", "to_onnx"]

suggest_names(__name__, {"export": "lz.export.to_onnx(model, args, path) writes an ONNX file"})
