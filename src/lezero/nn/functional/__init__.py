"""The functions behind the layers, with PyTorch's names and arguments."""

from lezero.nn.functional.activation import (
    celu,
    elu,
    gelu,
    glu,
    gumbel_softmax,
    hardshrink,
    hardsigmoid,
    hardswish,
    hardtanh,
    leaky_relu,
    log_softmax,
    logsigmoid,
    mish,
    prelu,
    relu,
    relu6,
    selu,
    sigmoid,
    silu,
    softmax,
    softmin,
    softplus,
    softshrink,
    softsign,
    tanh,
    tanhshrink,
    threshold,
)
from lezero.nn.functional.attention import scaled_dot_product_attention
from lezero.nn.functional.convolution import bilinear, conv1d, conv2d, conv_transpose2d, linear
from lezero.nn.functional.dropout import alpha_dropout, dropout, dropout1d, dropout2d
from lezero.nn.functional.loss import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cosine_embedding_loss,
    cosine_similarity,
    cross_entropy,
    gaussian_nll_loss,
    huber_loss,
    kl_div,
    l1_loss,
    margin_ranking_loss,
    mse_loss,
    nll_loss,
    pairwise_distance,
    smooth_l1_loss,
    triplet_margin_loss,
)
from lezero.nn.functional.normalization import (
    batch_norm,
    group_norm,
    instance_norm,
    layer_norm,
    local_response_norm,
    normalize,
    rms_norm,
)
from lezero.nn.functional.padding import pad
from lezero.nn.functional.pooling import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    avg_pool1d,
    avg_pool2d,
    max_pool1d,
    max_pool2d,
)
from lezero.nn.functional.sparse import embedding, one_hot

__all__ = [name for name in dir() if not name.startswith("_") and callable(globals()[name])]
