"""Every loss under one roof."""

# ruff: noqa: F401 -- a face: names are imported for others to import

from lezero.ops.class_losses import cross_entropy, cross_entropy_grad, cross_entropy_target_grad, nll_loss
from lezero.ops.point_losses import (
    bce_loss,
    bce_with_logits,
    huber_loss,
    kl_div,
    l1_loss,
    mse_loss,
    smooth_l1_loss,
)
