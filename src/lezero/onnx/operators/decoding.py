"""Decoding of pictures."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from lezero.onnx.program import OnnxError
from lezero.onnx.registry import Context, on_host, operator
from lezero.tensor import Tensor, tensor


@operator("ImageDecoder", 20, host=True)
def image_decoder(_: Context, stream: Any, *, pixel_format: str = "RGB") -> Tensor:
    """Pixels [height, width, channels], uint8; of what cannot be read there are none."""
    try:
        from PIL import Image
    except ImportError:
        raise OnnxError("pictures are read by Pillow, which is not installed: pip install pillow") from None
    if pixel_format not in ("RGB", "BGR", "Grayscale"):
        raise OnnxError(f"pixel_format is RGB, BGR or Grayscale, not {pixel_format!r}")
    try:
        image = Image.open(io.BytesIO(on_host(stream).tobytes()))
        pixels = np.asarray(image.convert("L" if pixel_format == "Grayscale" else "RGB"))
    except (OSError, ValueError, SyntaxError):  # what Pillow raises depends on the format
        return tensor(np.empty((0, 0, 0), np.uint8))
    pixels = pixels.reshape(*pixels.shape[:2], -1)
    return tensor(np.ascontiguousarray(pixels[..., ::-1] if pixel_format == "BGR" else pixels))
