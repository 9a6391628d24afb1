"""Random numbers: Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC 2011).

The generator is a function from (key, counter) to four 32-bit words, without state.  Here the key is the seed and the counter
is made of the element's number and an `offset` that tells calls apart.  So any slice, thread count or fusion gives the same bits,
and seed and offset, 0-d int64 operands, are inputs of a run that never enter a cache's key.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lezero.graph.dtype import bool_, float32, float64, int32, int64, uint32, uint64
from lezero.loops.ir import Value, call, cast, const
from lezero.ops.arithmetic import cast as convert
from lezero.ops.base import Composite, Source, op
from lezero.ops.creation import as_index
from lezero.ops.functions import cos, log, sqrt
from lezero.ops.rules import narrow

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)  # the golden ratio and sqrt(3) - 1, which step the key
ROUNDS = 10


def philox_words(key: tuple[int, int], counter: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """Four uint32 words for each counter (four arrays of uint32); the key is two numbers of 32 bits."""
    k0, k1 = (np.uint32(k) for k in key)
    c0, c1, c2, c3 = (np.asarray(c, np.uint32) for c in counter)
    with np.errstate(over="ignore"):
        for _ in range(ROUNDS):
            p = c0.astype(np.uint64) * np.uint64(MULTIPLIERS[0])
            q = c2.astype(np.uint64) * np.uint64(MULTIPLIERS[1])
            high_p, low_p = (p >> np.uint64(32)).astype(np.uint32), p.astype(np.uint32)
            high_q, low_q = (q >> np.uint64(32)).astype(np.uint32), q.astype(np.uint32)
            c0, c1, c2, c3 = high_q ^ c1 ^ k0, low_q, high_p ^ c3 ^ k1, low_p
            k0, k1 = k0 + np.uint32(WEYL[0]), k1 + np.uint32(WEYL[1])
    return c0, c1, c2, c3


def _halves(x: Value) -> tuple[Value, Value]:
    """The low 32 bits of an i64, and the high ones, each as those of a u64."""
    x = cast(x, "u64")
    return x, _high(x)


def _high(x: Value) -> Value:
    return call("shr", x, const(32, "u64"))


def _philox_values(key: tuple[Value, Value], counter: tuple[Value, ...]) -> tuple[Value, ...]:
    """``philox_words`` in loop IR: u32 Values of u64 ones.

    In between words are u64 of which only the low half counts: vector units multiply the low halves of 64-bit lanes, and words
    that are never narrowed take half of the instructions.
    """
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(ROUNDS):
        p, q = (
            call("mul", call("and", c, const(0xFFFFFFFF, "u64")), const(m, "u64"))
            for c, m in zip((c0, c2), MULTIPLIERS)
        )
        c0, c1 = call("xor", call("xor", _high(q), c1), k0), q
        c2, c3 = call("xor", call("xor", _high(p), c3), k1), p
        k0, k1 = (call("add", k, const(w, "u64")) for k, w in zip((k0, k1), WEYL))
    return tuple(cast(c, "u32") for c in (c0, c1, c2, c3))


def random_words(number: Value, seed: Value, offset: Value) -> tuple[Value, ...]:
    """The four words of the element with this number, in loop IR."""
    return _philox_values(_halves(seed), (*_halves(number), *_halves(offset)))


def _check_state(name: str, seed: Any, offset: Any) -> None:
    for word, x in (("seed", seed), ("offset", offset)):
        if x.shape or x.dtype is not int64:
            raise TypeError(f"{name}: the {word} must be a 0-d int64 tensor, got {x.dtype.name}{list(x.shape)}")


@op("philox")
class philox(Source):
    """uint32 random bits.

    Parameters
    ----------
    seed, offset : 0-d int64
    shape : tuple of int
    word : 0..3
        Which of the four words of each element: they are independent, and come at the price of one.
    """

    attrs = {"shape": (), "word": 0}
    shape_attrs = True

    def infer(seed, offset, shape, word):
        _check_state("philox", seed, offset)
        return shape, uint32

    def reference(seed, offset, shape_, dtype_, shape, word):
        key, call_number = (np.asarray(v).astype(np.uint64).item() for v in (seed, offset))
        number = np.arange(math.prod(shape_), dtype=np.uint64)
        counter = (
            number & 0xFFFFFFFF,
            number >> np.uint64(32),
            *(np.full_like(number, w) for w in _split(call_number)),
        )
        return philox_words(_split(key), tuple(c.astype(np.uint32) for c in counter))[word].reshape(shape_)

    def element(i, shape_, dtype_, seed, offset, shape, word):
        number = const(0)
        for p, d in zip(i, shape_):
            number = call("add", call("mul", number, as_index(d)), p)
        return random_words(number, seed, offset)[word]

    def gradient(dy, y, seed, offset, shape, word):
        return None, None


def _split(x: int) -> tuple[int, int]:
    return x & 0xFFFFFFFF, x >> 32


def _unit(seed: Any, offset: Any, shape: tuple[int, ...], bits: int, word: int = 0) -> Any:
    """Multiples of 2**-bits in [0, 1), in float32 for at most 24 bits, else in float64 (of two words)."""
    first = philox(seed, offset, shape=shape, word=word)
    if bits <= 24:
        # by way of int32, which vector units convert in one instruction
        return convert(convert(first >> (32 - bits), dtype=int32), dtype=float32) * 2.0**-bits
    second = philox(seed, offset, shape=shape, word=word + 1)
    high, low = (convert(convert(w, dtype=int64), dtype=float64) for w in (first >> 5, second >> 6))
    return (high * 2.0**26 + low) * 2.0**-53


PRECISION = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
"""Bits of a floating dtype's significand: so many random ones never round up to 1."""


def _unit_of(seed: np.ndarray, offset: np.ndarray, shape: tuple[int, ...], bits: int, word: int = 0) -> np.ndarray:
    """``_unit`` in NumPy."""
    first = philox.reference(seed, offset, shape, uint32, shape, word)
    if bits <= 24:
        return (first >> np.uint32(32 - bits)).astype(np.float32) * np.float32(2.0**-bits)
    second = philox.reference(seed, offset, shape, uint32, shape, word + 1)
    return ((first >> np.uint32(5)) * 2.0**26 + (second >> np.uint32(6))) * 2.0**-53


def _check_floating(name: str, dtype: Any) -> None:
    if dtype.name not in PRECISION:
        raise TypeError(f"{name}: a floating dtype is needed, got {dtype.name}")


@op("uniform", onnx="RandomUniform")
class uniform(Composite):
    """Uniform in [0, 1): multiples of 2**-24 in float32, 2**-53 in float64, 2**-11 in float16, 2**-8 in bfloat16.

    Parameters
    ----------
    seed, offset : 0-d int64
    shape : tuple of int
    dtype : floating DType
    """

    attrs = {"shape": (), "dtype": float32}
    shape_attrs = True

    def infer(seed, offset, shape, dtype):
        _check_state("uniform", seed, offset)
        _check_floating("uniform", dtype)
        return shape, dtype

    def decompose(seed, offset, shape, dtype):
        return narrow(_unit(seed, offset, shape, PRECISION[dtype.name]), dtype)

    def reference(seed, offset, shape, dtype):
        return _unit_of(seed, offset, shape, PRECISION[dtype.name])

    def gradient(dy, y, seed, offset, shape, dtype):
        return None, None


@op("normal", onnx="RandomNormal")
class normal(Composite):
    """Standard normal, by Box and Muller's transform (1958) of two uniform numbers; half precision by way of float32.

    Parameters
    ----------
    seed, offset : 0-d int64
    shape : tuple of int
    dtype : floating DType
    """

    attrs = {"shape": (), "dtype": float32}
    shape_attrs = True

    def infer(seed, offset, shape, dtype):
        _check_state("normal", seed, offset)
        _check_floating("normal", dtype)
        return shape, dtype

    def decompose(seed, offset, shape, dtype):
        bits = 53 if dtype is float64 else 24
        u, v = _unit(seed, offset, shape, bits), _unit(seed, offset, shape, bits, word=2)
        return narrow(sqrt(log(1 - u) * -2) * cos(v * (2 * math.pi)), dtype)

    def reference(seed, offset, shape, dtype):
        bits = 53 if dtype is float64 else 24
        u, v = _unit_of(seed, offset, shape, bits), _unit_of(seed, offset, shape, bits, word=2)
        return np.sqrt(np.log(1 - u) * -2) * np.cos(v * v.dtype.type(2 * math.pi))

    def gradient(dy, y, seed, offset, shape, dtype):
        return None, None


@op("randint")
class randint(Composite):
    """Whole numbers, each of low .. high-1 equally likely (up to one part in 2**32 / (high - low), or 2**64 beyond 2**32).

    Parameters
    ----------
    seed, offset : 0-d int64
    low, high : int, low < high
    shape : tuple of int
    dtype : DType
    """

    attrs = {"low": 0, "high": 1, "shape": (), "dtype": int64}
    shape_attrs = True

    def infer(seed, offset, low, high, shape, dtype):
        _check_state("randint", seed, offset)
        if not 0 < high - low < 1 << 63:
            raise ValueError(f"randint: low < high < low + 2**63 is needed, got low={low}, high={high}")
        return shape, dtype

    def decompose(seed, offset, low, high, shape, dtype):
        span = high - low
        first = convert(philox(seed, offset, shape=shape), dtype=uint64)
        if span <= 1 << 32:
            place = (first * span) >> 32
        else:
            place = ((first << 32) | convert(philox(seed, offset, shape=shape, word=1), dtype=uint64)) % span
        return narrow(convert(place, dtype=int64) + low, dtype)

    def reference(seed, offset, low, high, shape, dtype):
        span = np.uint64(high - low)
        first = philox.reference(seed, offset, shape, uint32, shape, 0).astype(np.uint64)
        if span <= 1 << 32:
            place = (first * span) >> np.uint64(32)
        else:
            second = philox.reference(seed, offset, shape, uint32, shape, 1).astype(np.uint64)
            place = ((first << np.uint64(32)) | second) % span
        return place.astype(np.int64) + low

    def gradient(dy, y, seed, offset, low, high, shape, dtype):
        return None, None


@op("bernoulli")
class bernoulli(Composite):
    """True with the probability that each element of `p` gives.

    Parameters
    ----------
    p : floating dtype, in [0, 1]
    seed, offset : 0-d int64
    """

    differentiable = False

    def infer(p, seed, offset):
        _check_state("bernoulli", seed, offset)
        _check_floating("bernoulli", p.dtype)
        return p.shape, bool_

    def decompose(p, seed, offset):
        wide = p.dtype if p.dtype is float64 else float32
        return uniform(seed, offset, shape=tuple(p.shape), dtype=wide) < narrow(p, wide)

    def reference(p, seed, offset):
        wide = np.float64 if p.dtype == np.float64 else np.float32
        return _unit_of(seed, offset, p.shape, 53 if wide is np.float64 else 24) < p.astype(wide)

    def gradient(dy, y, p, seed, offset):
        return None, None, None


def randperm(n: int, seed: Any, offset: Any) -> Any:
    """The numbers 0 .. n-1 in random order (int64): the order of n random 63-bit keys."""
    from lezero.ops.sorting import argsort

    return argsort(randint(seed, offset, low=0, high=(1 << 63) - 1, shape=(n,)), axis=0)
