"""Automatic mixed precision."""

from lezero.amp.autocast import autocast, custom_bwd, custom_fwd, get_autocast_dtype, is_autocast_enabled
from lezero.amp.report import Report, report
from lezero.misspelt import suggest_names

__all__ = [
    "Report",
    "autocast",
    "custom_bwd",
    "custom_fwd",
    "get_autocast_dtype",
    "is_autocast_enabled",
    "report",
]

suggest_names(__name__)
