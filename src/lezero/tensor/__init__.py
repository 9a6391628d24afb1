"""Tensors: the class, what makes them, and the modes they are recorded in.

The class is put together in ``whole.py`` from parts with one idea each; ``core.py`` is what all parts build on.
"""

from lezero.tensor.computing import Pair
from lezero.tensor.creation import (
    arange,
    as_tensor,
    cat,
    concat,
    concatenate,
    einsum,
    empty,
    empty_like,
    eye,
    from_numpy,
    full,
    full_like,
    linspace,
    make_parameter,
    ones,
    ones_like,
    rand,
    rand_like,
    randint,
    randint_like,
    randn,
    randn_like,
    randperm,
    stack,
    tensor,
    where,
    zeros,
    zeros_like,
)  # fmt: skip
from lezero.tensor.exchange import from_dlpack
from lezero.tensor.modes import enable_grad, inference_mode, is_grad_enabled, no_grad, set_grad_enabled
from lezero.tensor.whole import Tensor
