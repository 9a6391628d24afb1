"""What to do about names of ``torch.nn`` and ``torch.nn.functional`` that are not there."""

from __future__ import annotations

_VOLUMES = "these windows over volumes are not there yet; nn.MaxPool3d, nn.AvgPool3d and nn.LPPool3d are"
_PARALLEL = "training on several devices is not there yet; all cores compute anyway (lz.set_num_threads)"
_QUANTIZED = "quantised layers are not there yet"

LAYERS = {
    **dict.fromkeys(
        """AdaptiveAvgPool3d AdaptiveMaxPool3d FractionalMaxPool3d""".split(),
        _VOLUMES,
    ),
    **dict.fromkeys("DataParallel parallel".split(), _PARALLEL),
    **dict.fromkeys("intrinsic qat quantizable quantized".split(), _QUANTIZED),
    **dict.fromkeys("FractionalMaxPool2d".split(), "windows of pooling are all of one size, in nn.MaxPool2d"),
    "CrossMapLRN2d": "nn.LocalResponseNorm normalises across channels; PyTorch's two differ near the first and last channel",
}
FUNCTIONS = {
    **dict.fromkeys(
        """adaptive_avg_pool3d adaptive_max_pool3d adaptive_max_pool3d_with_indices fractional_max_pool3d""".split(),
        _VOLUMES,
    ),
    **{
        f"{function}_with_indices": f"lz.nn.functional.{function}(…, return_indices=True) gives both"
        for function in "adaptive_max_pool1d adaptive_max_pool2d max_pool3d".split()
    },
}
