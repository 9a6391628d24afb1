"""``Tensor``: what users hold, put together from its parts.

Methods follow PyTorch's names and behaviour.  None of them computes: they record, and reading a value (``item``, ``numpy``,
``tolist``, printing, ``bool``, ``float``, ``int``) runs what has been recorded.
"""

from __future__ import annotations

from typing import Any

from lezero.runtime import recorder
from lezero.tensor.casts import Casts
from lezero.tensor.computing import Computing
from lezero.tensor.creation import New
from lezero.tensor.elementwise import Elementwise
from lezero.tensor.exchange import Exchange
from lezero.tensor.gradients import Gradients
from lezero.tensor.interop import Interop
from lezero.tensor.names import Names
from lezero.tensor.standard import Standard
from lezero.tensor.values import Values
from lezero.tensor.views import Views
from lezero.tensor.writing import Writing


class Tensor(Standard, Elementwise, Computing, Views, Values, Gradients, Writing, Casts, New, Names, Interop, Exchange):
    """An n-dimensional array that remembers how it was computed.

    Make one with :func:`lezero.tensor`, :func:`lezero.zeros` and friends; the class itself is not called.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        raise TypeError("make tensors with lz.tensor(data), lz.zeros(...), lz.from_numpy(array) and the like")


recorder.tensor_class = Tensor
