"""Learning-rate schedules: each ``step()`` writes the next rate into the optimizer's parameter groups.

Rates are Python floats which the update reads as run-time inputs, so a schedule never compiles anything.  Schedules act on
the rate they find (not on a formula of the step), hence they chain, and a rate changed by hand is taken from there.  The
formulas are those of PyTorch's schedulers of the same names.
"""

from lezero.misspelt import suggest_names
from lezero.optim.lr_scheduler.base import LRScheduler
from lezero.optim.lr_scheduler.chained import ChainedScheduler, SequentialLR
from lezero.optim.lr_scheduler.cyclic import CyclicLR
from lezero.optim.lr_scheduler.one_cycle import OneCycleLR
from lezero.optim.lr_scheduler.plateau import ReduceLROnPlateau
from lezero.optim.lr_scheduler.schedules import (
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiplicativeLR,
    MultiStepLR,
    PolynomialLR,
    StepLR,
    WarmupLR,
)

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
    "WarmupLR",
]

suggest_names(__name__)
