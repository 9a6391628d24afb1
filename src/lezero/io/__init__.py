"""Files: the ``.lzm`` container, the safetensors format inside it, PyTorch's ``.pth`` and NumPy's ``.npz``."""

from lezero.io.lzm import LzmError, load, read_header, save
from lezero.io.npz import NpzError, load_npz, save_npz
from lezero.io.pth import PthError, load_pth
from lezero.io.pth_writer import save_pth
from lezero.io.safetensors import SafetensorsError, load_safetensors, save_safetensors
from lezero.io.weights import WeightsError, load_weights, save_weights
from lezero.misspelt import suggest_names

__all__ = [
    "LzmError",
    "NpzError",
    "PthError",
    "SafetensorsError",
    "WeightsError",
    "load",
    "load_npz",
    "load_pth",
    "load_safetensors",
    "load_weights",
    "read_header",
    "save",
    "save_npz",
    "save_pth",
    "save_safetensors",
    "save_weights",
]

suggest_names(__name__)
