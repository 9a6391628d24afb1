"""Helpers around modules and their parameters."""

from lezero.misspelt import suggest_names
from lezero.nn.utils import parametrizations, parametrize, rnn
from lezero.nn.utils.clip_grad import clip_grad_norm_, clip_grad_value_, get_total_norm
from lezero.nn.utils.convert_parameters import parameters_to_vector, vector_to_parameters
from lezero.nn.utils.summary import summary

__all__ = [
    "clip_grad_norm_",
    "clip_grad_value_",
    "get_total_norm",
    "parameters_to_vector",
    "parametrizations",
    "parametrize",
    "rnn",
    "summary",
    "vector_to_parameters",
]

suggest_names(
    __name__,
    {
        "spectral_norm": "lz.nn.utils.parametrizations.spectral_norm is the same",
        "weight_norm": "lz.nn.utils.parametrizations.weight_norm is the same",
    },
)
