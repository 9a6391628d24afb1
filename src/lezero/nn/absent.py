"""What to do about names of ``torch.nn`` and ``torch.nn.functional`` that are not there."""

from __future__ import annotations

_PARALLEL = "training on several devices is not there yet; all cores compute anyway (lz.set_num_threads)"
_QUANTIZED = "quantised layers are not there yet"

LAYERS = {
    **dict.fromkeys("DataParallel parallel".split(), _PARALLEL),
    **dict.fromkeys("intrinsic qat quantizable quantized".split(), _QUANTIZED),
}
FUNCTIONS: dict[str, str] = {
    "scaled_mm": "products of eight-bit floating-point numbers are not there yet; lz.matmul takes lz.bfloat16",
    "scaled_grouped_mm": "products of eight-bit floating-point numbers are not there yet; grouped_mm takes lz.bfloat16",
}
