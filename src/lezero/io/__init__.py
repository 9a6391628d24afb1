"""Files: the ``.lzm`` container and the safetensors format inside it."""

from lezero.io.lzm import LzmError, load, read_header, save
from lezero.io.safetensors import SafetensorsError, load_safetensors, save_safetensors
from lezero.misspelt import suggest_names

__all__ = ["LzmError", "SafetensorsError", "load", "load_safetensors", "read_header", "save", "save_safetensors"]

suggest_names(__name__)
