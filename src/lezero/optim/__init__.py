"""Optimizers and learning-rate schedules."""

from lezero.misspelt import suggest_names
from lezero.optim import lr_scheduler, swa_utils
from lezero.optim.adagrad import Adagrad
from lezero.optim.adam import Adam, AdamW
from lezero.optim.layerwise import LAMB, Lion
from lezero.optim.optimizer import Optimizer
from lezero.optim.rmsprop import RMSprop
from lezero.optim.sgd import SGD

__all__ = ["LAMB", "SGD", "Adagrad", "Adam", "AdamW", "Lion", "Optimizer", "RMSprop", "lr_scheduler", "swa_utils"]

_ABSENT = "ASGD Adadelta Adafactor Adamax LBFGS Muon NAdam RAdam Rprop SparseAdam".split()
_INSTEAD = "there is no such optimizer yet; AdamW, SGD, Lion and LAMB are the nearest of those that are"

suggest_names(__name__, dict.fromkeys(_ABSENT, _INSTEAD))
