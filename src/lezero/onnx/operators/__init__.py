"""What ONNX's operators compute, by family; importing this package registers them."""

from lezero.onnx.operators import (
    attention,
    control,
    convolving,
    elementwise,
    images,
    indexing,
    losses,
    network,
    normalizing,
    pooling,
    recurrent,
    reducing,
    shaping,
)

__all__ = [
    "attention",
    "control",
    "convolving",
    "elementwise",
    "images",
    "indexing",
    "losses",
    "network",
    "normalizing",
    "pooling",
    "recurrent",
    "reducing",
    "shaping",
]
