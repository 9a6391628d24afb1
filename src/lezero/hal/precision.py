"""How exact products of float32 matrices have to be: chosen by the user, followed by backends as they can."""

from __future__ import annotations

FLOAT32_MATMUL = ("highest", "high", "medium")
"""``medium`` is the only one in which operands may be rounded (to bfloat16)."""

float32_matmul = "highest"
