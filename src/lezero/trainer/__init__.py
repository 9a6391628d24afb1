"""A training loop with progress, checkpoints, exact resume and early stopping; the loop stays writable by hand."""

from lezero.misspelt import suggest_names
from lezero.trainer.callbacks import Callback, EarlyStopping
from lezero.trainer.checkpoints import Checkpoints
from lezero.trainer.loop import Trainer
from lezero.trainer.metrics import accuracy

__all__ = ["Callback", "Checkpoints", "EarlyStopping", "Trainer", "accuracy"]

suggest_names(__name__)
