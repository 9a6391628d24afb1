"""What runs in which precision under autocast, by the names of operations.

The lists are those of PyTorch's autocast for GPUs, with means, variances and batch statistics among the sums.  An operation
in none of them computes in the dtype of its operands; element-wise ones promote these by themselves.  Batch norm is in none: it
computes in float32 in any case, and its result has the input's dtype, so the activations of a convolutional network stay low.
"""

LOW = frozenset(
    "attention conv2d conv2d_input_grad convolution dot einsum linear matmul".split(),
)
"""Products: their operands are cast to the low type."""

WIDE = frozenset(
    """
    acos asin cosh exp exp2 expm1 integer_power log log10 log1p log2 logaddexp logsigmoid pow reciprocal rsqrt sinh softplus
    square tan
    cumprod cumsum linear_scan logsumexp mean norm prod std sum var
    log_softmax softmax
    batch_mean batch_var group_norm layer_norm rms_norm
    bce_loss bce_with_logits cross_entropy huber_loss kl_div l1_loss mse_loss nll_loss smooth_l1_loss
    """.split()
)
"""What needs range or adds many terms: operands of half precision are cast to float32, and so the result is float32."""

WIDEST = frozenset(
    "concatenate scatter scatter_add scatter_nd scatter_nd_add".split(),
)
"""What needs one dtype and has no preference: floating operands are cast to the widest among them."""
