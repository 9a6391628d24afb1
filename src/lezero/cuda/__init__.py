"""What programs written for PyTorch ask about CUDA before anything else: whether it is there, and what follows from the answer."""

from __future__ import annotations

from lezero.device import devices, empty_cache, synchronize
from lezero.misspelt import suggest_names

__all__ = ["device_count", "empty_cache", "is_available", "manual_seed", "manual_seed_all", "synchronize"]


def device_count() -> int:
    """How many of the backend's devices are CUDA's."""
    return sum(name.split(":")[0] == "cuda" for name in devices())


def is_available() -> bool:
    """Whether the backend in use has such a device."""
    return device_count() > 0


def manual_seed(seed: int) -> None:
    """Nothing: ``lz.manual_seed`` starts the random numbers of all devices."""


manual_seed_all = manual_seed

_MEMORY = "lz.device has it: memory_allocated, max_memory_allocated, memory_stats and others"

suggest_names(
    __name__,
    {
        **dict.fromkeys("amp GradScaler".split(), "lz.amp.autocast and lz.amp.GradScaler are for every device"),
        **dict.fromkeys(
            "memory_allocated max_memory_allocated memory_reserved max_memory_reserved memory_stats reset_peak_memory_stats".split(),
            _MEMORY,
        ),
        **dict.fromkeys(
            "current_device get_device_name get_device_properties set_device device".split(),
            "lz.device.devices() lists the devices there are, lz.device.properties(name) describes one",
        ),
        **dict.fromkeys(
            "Event Stream current_stream stream".split(),
            "what was recorded runs in order; time.perf_counter() times it",
        ),
    },
)
