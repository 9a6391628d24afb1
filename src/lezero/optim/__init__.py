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

suggest_names(__name__)
