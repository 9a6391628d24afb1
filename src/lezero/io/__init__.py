"""Files: the ``.lzm`` container, the safetensors format inside it, and PyTorch's ``.pth`` to read."""

from lezero.io.lzm import LzmError, load, read_header, save
from lezero.io.pth import PthError, load_pth
from lezero.io.safetensors import SafetensorsError, load_safetensors, save_safetensors
from lezero.misspelt import suggest_names

__all__ = [
    "LzmError",
    "PthError",
    "SafetensorsError",
    "load",
    "load_pth",
    "load_safetensors",
    "read_header",
    "save",
    "save_safetensors",
]

suggest_names(__name__)
