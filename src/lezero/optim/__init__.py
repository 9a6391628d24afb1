"""Optimizers and learning-rate schedules."""

from lezero.misspelt import suggest_names
from lezero.optim import lr_scheduler, swa_utils
from lezero.optim.adadelta import Adadelta
from lezero.optim.adafactor import Adafactor
from lezero.optim.adagrad import Adagrad
from lezero.optim.adam import Adam, AdamW
from lezero.optim.adamax import Adamax
from lezero.optim.asgd import ASGD
from lezero.optim.layerwise import LAMB, Lion
from lezero.optim.lbfgs import LBFGS
from lezero.optim.muon import Muon
from lezero.optim.nadam import NAdam, RAdam
from lezero.optim.optimizer import Optimizer
from lezero.optim.rmsprop import RMSprop
from lezero.optim.rprop import Rprop
from lezero.optim.sgd import SGD

__all__ = [
    "ASGD", "LAMB", "LBFGS", "SGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Lion", "Muon", "NAdam",
    "Optimizer", "RAdam", "RMSprop", "Rprop", "lr_scheduler", "swa_utils",
]  # fmt: skip

suggest_names(
    __name__,
    {"SparseAdam": "gradients are dense, those of nn.Embedding too: Adam and AdamW update every row"},
)
