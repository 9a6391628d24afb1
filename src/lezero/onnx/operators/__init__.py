"""What ONNX's operators compute, by family; importing this package registers them."""

from lezero.onnx.operators import control, elementwise, indexing, network, reducing, shaping

__all__ = ["control", "elementwise", "indexing", "network", "reducing", "shaping"]
