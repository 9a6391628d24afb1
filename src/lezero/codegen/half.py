"""bf16 and f16 to and from f32: in hardware where the target has it, by integer arithmetic where LLVM would call out."""

from __future__ import annotations

import math
import struct

from lezero.codegen.values import Builder, X


def encode(value: float, type: str) -> int:
    """The 16 bits of a constant, rounded to nearest even."""
    if type == "f16":
        try:
            return struct.unpack("<H", struct.pack("<e", value))[0]
        except OverflowError:
            return 0xFC00 if value < 0 else 0x7C00
    if math.isnan(value):
        return 0x7FC0
    try:
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
    except OverflowError:
        return 0xFF80 if value < 0 else 0x7F80
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def decode(b: Builder, x: X, type: str) -> X:
    """16 bits (i16) to f32; exact."""
    if type == "bf16":
        return (x.convert("zext", "i32") << 16).floats()
    if b.target.f16_convert:
        return x.convert("bitcast", "half").convert("fpext", "float")
    wide = x.convert("zext", "i32")
    magnitude = wide & 0x7FFF
    # As f32 bits the exponent is 112 too low; a multiplication corrects it and normalises subnormals at once.
    scaled = ((magnitude << 13).floats() * 2.0**112).bits()
    special = magnitude >= 0x7C00
    result = special.where((magnitude << 13) | 0x7F800000, scaled)
    return (result | ((wide & 0x8000) << 16)).floats()


def round_to(b: Builder, x: X, type: str) -> X:
    """f32 to 16 bits (i16), to nearest even."""
    if type == "bf16":
        bits = x.bits()
        rounded = (bits + 0x7FFF + (bits.lshr(16) & 1)).lshr(16)
        return x.isnan().where(bits.lshr(16) | 0x40, rounded).convert("trunc", "i16")
    if b.target.f16_convert:
        # The fence keeps LLVM from making one rounding of this and one from f64 to f32 before it: no instruction does that.
        suffix = "f32" if x.n == 1 else f"v{x.n}f32"
        x = b.call(f"llvm.arithmetic.fence.{suffix}", "float", x.n, [x])
        return x.convert("fptrunc", "half").convert("bitcast", "i16")
    bits = x.bits()
    magnitude = bits & 0x7FFFFFFF
    normal = (magnitude + 0xFFF + (magnitude.lshr(13) & 1) - 0x38000000).lshr(13)
    # Added to 0.5, whose last place is 2**-24, a subnormal half is rounded by the addition itself.
    subnormal = (magnitude.floats() + 0.5).bits() - 0x3F000000
    result = (magnitude < 0x38800000).where(subnormal, normal)
    result = (magnitude >= 0x47800000).where(0x7C00, result)
    result = x.isnan().where((magnitude.lshr(13) & 0x3FF) | 0x7E00, result)
    return (result | (bits.lshr(16) & 0x8000)).convert("trunc", "i16")
