"""LeZero: deep learning from the first training step to production.

    import lezero as lz

    x = lz.randn(8, 3, requires_grad=True)
    (x * 2).sum().backward()
    print(x.grad)

Operations are recorded; reading a value, ``optimizer.step()`` or ``lz.realize()`` runs what has been recorded, restructured
and as native code.  Subpackages (``lezero.nn``, ``lezero.optim``, ``lezero.data``, …) are imported when first used.
"""

from __future__ import annotations

from importlib import import_module
from math import e, inf, nan, pi
from typing import TYPE_CHECKING, Any

from lezero.arrivals import when_imported as _when_imported
from lezero.functions import *  # noqa: F403
from lezero.graph.dtype import (
    bfloat16, bool_, complex64, complex128, float16, float32, float64, int8, int16, int32, int64, set_default_dtype, uint8,
    uint16, uint32, uint64,
)  # fmt: skip
from lezero.graph.dtype import DType as dtype
from lezero.graph.dtype import default_dtype as get_default_dtype
from lezero.graph.dtype import finfo, iinfo
from lezero.graph.dtype import promote as promote_types
from lezero.misspelt import unknown
from lezero.runtime import realize
from lezero.runtime.inputs import Generator
from lezero.tensor.printing import get_printoptions, set_printoptions
from lezero.tensor import (
    Tensor, arange, as_tensor, cat, concat, concatenate, einsum, empty, empty_like, enable_grad, eye, from_dlpack, from_numpy, full,
    full_like, inference_mode, is_grad_enabled, linspace, no_grad, ones, ones_like, rand, rand_like, randint, randint_like, randn,
    randn_like, randperm, set_grad_enabled, stack, tensor, where, zeros, zeros_like,
)  # fmt: skip

__version__ = "0.1.0"

double, half, long, short, cfloat, cdouble = float64, float16, int64, int16, complex64, complex128
asarray = as_tensor
newaxis = None

_LAZY = {
    name: name
    for name in (
        "amp", "array_api", "autograd", "backends", "cuda", "data", "debug", "device", "export", "fft", "io", "linalg", "models", "nn", "onnx",
        "optim", "profiler", "runtime", "trainer",
    )
} | {
    "Trainer": "trainer:Trainer",
    "convert_weights": "converting:convert_weights",
    "from_torch": "interop:from_torch",
    "autocast": "amp:autocast",
    "checkpoint": "autograd:checkpoint",
    "save": "io:save",
    "load": "io:load",
    "jit": "runtime.jit:jit",
    "MemoryLimitError": "runtime.jit:MemoryLimitError",
    "explain": "runtime.explain:explain",
    "grad": "autograd:grad_of",
    "vjp": "autograd:vjp",
    "set_num_threads": "device:set_num_threads",
    "get_num_threads": "device:get_num_threads",
    "set_float32_matmul_precision": "device:set_float32_matmul_precision",
    "get_float32_matmul_precision": "device:get_float32_matmul_precision",
    "value_and_grad": "autograd:value_and_grad",
    # dtypes named like Python's types, which this module needs itself
    "bool": "graph.dtype:bool_",
    "float": "graph.dtype:float32",
    "int": "graph.dtype:int32",
}  # fmt: skip

_LAZY |= {
    name: f"nn.functional:{name}"
    for name in """
        adaptive_avg_pool1d alpha_dropout avg_pool1d bilinear binary_cross_entropy_with_logits celu conv1d conv2d conv_transpose2d
        cosine_embedding_loss cosine_similarity dropout group_norm hardshrink instance_norm kl_div layer_norm margin_ranking_loss
        max_pool1d max_pool2d pairwise_distance pixel_shuffle pixel_unshuffle prelu rms_norm selu threshold triplet_margin_loss
    """.split()
}  # fmt: skip

if TYPE_CHECKING:
    from lezero import amp, autograd, data, debug, device, fft, io, linalg, models, nn, optim
    from lezero.io import load, save
    from lezero.trainer import Trainer


def __getattr__(name: str) -> Any:
    place = _LAZY.get(name)
    if place is None:
        from lezero.absent import advice

        raise unknown(__name__, name, advice(name))
    module, _, attribute = place.partition(":")
    value = import_module(f"lezero.{module}")
    if attribute:
        value = getattr(value, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])


_when_imported("einops._backends", lambda: import_module("lezero.einops"))


def manual_seed(seed: int) -> Generator:
    """Start the default stream of random numbers of `seed`; the same seed gives the same numbers."""
    from lezero.runtime.inputs import default_generator

    return default_generator.manual_seed(seed)


def seed() -> int:
    """Seed the default stream from the system's randomness, and return the seed."""
    from lezero.runtime.inputs import Generator, default_generator

    fresh = Generator().initial_seed()
    default_generator.manual_seed(fresh)
    return fresh


def get_rng_state() -> dict[str, int]:
    """The state of the default generator, for ``set_rng_state``."""
    from lezero.runtime.inputs import default_generator

    return default_generator.get_state()


def set_rng_state(state: dict[str, int]) -> None:
    """Go on drawing random numbers from where ``get_rng_state`` was called."""
    from lezero.runtime.inputs import default_generator

    default_generator.set_state(state)
