"""Models for other runtimes.

lezero.export.to_onnx(model, (x,), "model.onnx", dynamic_shapes={"x": {0: "batch"}})
"""

from lezero.export.onnx import Dim, ExportError, to_onnx
from lezero.export.verify import VerificationError

__all__ = ["Dim", "ExportError", "VerificationError", "to_onnx"]
