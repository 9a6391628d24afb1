"""What to do about names of ``torch.nn`` and ``torch.nn.functional`` that are not there."""

from __future__ import annotations

_VOLUMES = "layers and functions of volumes are not there yet; those of sequences (1d) and images (2d) are"
_LAZY = "layers are made with the numbers of their inputs, as in nn.Linear(in_features, out_features)"
_PARALLEL = "training on several devices is not there yet; all cores compute anyway (lz.set_num_threads)"
_QUANTIZED = "quantised layers are not there yet"
_UNPOOLED = "pooling cannot be undone yet; nn.Upsample and nn.ConvTranspose2d enlarge images"
_TRANSPOSED = (
    "only nn.ConvTranspose2d is there: give it x.unsqueeze(2), a kernel of (1, size) and a stride of (1, step)"
)
_SAMPLED = "images are sampled at given places by lz.nn.functional.interpolate only, which resizes them"
_WINDOWS = "windows along a dimension are x.unfold(dim, size, step), and F.pad(x, pad) pads first; windows are not put together yet"
_BAGS = "F.embedding(indices, weight).sum(-2), or .mean(-2), is the same"

LAYERS = {
    **dict.fromkeys(
        """AdaptiveAvgPool3d AdaptiveMaxPool3d AvgPool3d BatchNorm3d CircularPad3d ConstantPad3d Conv3d ConvTranspose3d Dropout3d
        FractionalMaxPool3d InstanceNorm3d LPPool3d LazyBatchNorm3d LazyConv3d LazyConvTranspose3d LazyInstanceNorm3d MaxPool3d
        MaxUnpool3d ReflectionPad3d ReplicationPad3d ZeroPad3d""".split(),
        _VOLUMES,
    ),
    **dict.fromkeys(
        """LazyBatchNorm1d LazyBatchNorm2d LazyConv1d LazyConv2d LazyConvTranspose1d LazyConvTranspose2d LazyInstanceNorm1d
        LazyInstanceNorm2d LazyLinear UninitializedBuffer UninitializedParameter""".split(),
        _LAZY,
    ),
    **dict.fromkeys("DataParallel parallel".split(), _PARALLEL),
    **dict.fromkeys("intrinsic qat quantizable quantized".split(), _QUANTIZED),
    **dict.fromkeys("MaxUnpool1d MaxUnpool2d".split(), _UNPOOLED),
    **dict.fromkeys("Fold Unfold".split(), _WINDOWS),
    **dict.fromkeys(
        "FractionalMaxPool2d LPPool1d LPPool2d".split(), "average and maximum are the kinds of pooling there are"
    ),
    "ConvTranspose1d": _TRANSPOSED,
    "CrossMapLRN2d": "nn.LocalResponseNorm is the same",
    "EmbeddingBag": "nn.Embedding, and .sum(-2) or .mean(-2) of what it gives, is the same",
    "FeatureAlphaDropout": "nn.AlphaDropout drops elements, nn.Dropout2d whole channels",
    "RReLU": "nn.LeakyReLU(negative_slope) has a slope that is not random",
    "Softmax2d": "nn.Softmax(dim=-3) is the same",
    "SyncBatchNorm": f"nn.BatchNorm2d sees all of a batch; {_PARALLEL}",
    "UpsamplingBilinear2d": 'nn.Upsample(scale_factor=n, mode="bilinear", align_corners=True) is the same',
    "UpsamplingNearest2d": "nn.Upsample(scale_factor=n) is the same",
}
FUNCTIONS = {
    **dict.fromkeys(
        """adaptive_avg_pool3d adaptive_max_pool3d adaptive_max_pool3d_with_indices avg_pool3d conv3d conv_transpose3d dropout3d
        fractional_max_pool3d lp_pool3d max_pool3d max_pool3d_with_indices max_unpool3d""".split(),
        _VOLUMES,
    ),
    **dict.fromkeys("max_unpool1d max_unpool2d".split(), _UNPOOLED),
    **dict.fromkeys("affine_grid grid_sample".split(), _SAMPLED),
    **dict.fromkeys("fold unfold".split(), _WINDOWS),
    **{
        f"{function}_with_indices": f"lz.nn.functional.{function}(…, return_indices=True) gives both"
        for function in "adaptive_max_pool1d adaptive_max_pool2d max_pool1d max_pool2d".split()
    },
    **{
        f"upsample{kind}": f"lz.nn.functional.interpolate(x, size, {options}) is the same"
        for kind, options in {
            "": "mode=…",
            "_bilinear": 'mode="bilinear", align_corners=True',
            "_nearest": 'mode="nearest"',
        }.items()
    },
    "conv_transpose1d": "only conv_transpose2d is there: give it x.unsqueeze(2), weight.unsqueeze(2) and a stride of (1, step)",
    "embedding_bag": _BAGS,
    "multi_head_attention_forward": "nn.MultiheadAttention has the weights, and lz.nn.functional.scaled_dot_product_attention none",
    "pdist": "lz.cdist(x, x) has the distances of all pairs",
    "rrelu": "leaky_relu(x, negative_slope) has a slope that is not random",
}
