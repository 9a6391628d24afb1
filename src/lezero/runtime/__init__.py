"""Recording, running, the caches, capture and threads."""

from lezero.misspelt import suggest_names
from lezero.runtime.inputs import random_key, scalar_input
from lezero.runtime.run import end_step, realize, stats

__all__ = ["end_step", "random_key", "realize", "scalar_input", "stats"]

suggest_names(__name__)
