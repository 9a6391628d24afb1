"""Automatic mixed precision: autocast, loss scaling, Apex's levels, and what ran in which precision."""

from lezero.amp.apex import initialize, master_params, scale_loss
from lezero.amp.autocast import autocast, custom_bwd, custom_fwd, get_autocast_dtype, is_autocast_enabled
from lezero.amp.overflow import Overflow
from lezero.amp.report import Report, report
from lezero.amp.scaler import GradScaler
from lezero.misspelt import suggest_names

__all__ = [
    "GradScaler",
    "Overflow",
    "Report",
    "autocast",
    "custom_bwd",
    "custom_fwd",
    "get_autocast_dtype",
    "initialize",
    "is_autocast_enabled",
    "master_params",
    "report",
    "scale_loss",
]

suggest_names(__name__)
