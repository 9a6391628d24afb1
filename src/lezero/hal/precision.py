"""How exact products of float32 matrices have to be: chosen by the user, followed by backends as they can."""

from __future__ import annotations

FLOAT32_MATMUL = ("highest", "high", "medium")
"""``medium``: operands may be rounded to bfloat16; ``high``: they may be sums of two such numbers."""

float32_matmul = "highest"
