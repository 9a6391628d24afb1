"""Gradients.

``walk`` is the gradient walk itself and knows nodes only.  What users call lives where tensors are known, and is imported
when first asked for: ``grad``, ``backward``, ``grad_of``, ``value_and_grad``, ``vjp`` (``lezero.gradients``), ``Function``,
``custom_op`` (``lezero.function``), ``checkpoint``, ``checkpoint_sequential`` (``lezero.checkpointing``), ``gradcheck``, ``gradgradcheck`` (``lezero.gradcheck``), and the modes ``no_grad``,
``enable_grad``, ``set_grad_enabled``, ``inference_mode``, ``is_grad_enabled``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from lezero.misspelt import unknown

_PUBLIC = {
    "lezero.gradients": ("backward", "grad", "grad_of", "value_and_grad", "vjp"),
    "lezero.checkpointing": ("checkpoint", "checkpoint_sequential"),
    "lezero.function": ("Function", "custom_op"),
    "lezero.gradcheck": ("GradcheckError", "gradcheck", "gradgradcheck"),
    "lezero.tensor": ("enable_grad", "inference_mode", "is_grad_enabled", "no_grad", "set_grad_enabled"),
}
_ELSEWHERE = {
    "Variable": "every tensor takes requires_grad=True",
    "detect_anomaly": "lz.debug.check_numerics() finds where a NaN comes from",
    "set_detect_anomaly": "lz.debug.check_numerics() finds where a NaN comes from",
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise unknown(__name__, name, _ELSEWHERE.get(name, ""))
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
