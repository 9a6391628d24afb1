"""Write ``docs/coverage.md``: which public names of PyTorch and of the array API standard are there, which are absent on purpose, and which are missing.

    python tools/coverage_page.py docs/coverage.md

Needs PyTorch and array-api-strict.  A name is present where the class, function or method can be looked up; what it does is tested elsewhere.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import array_api_strict as strict
import torch

import lezero as lz


class Section(NamedTuple):
    """A part of PyTorch, and how much of it is promised."""

    title: str
    names: Callable[[], list[str]]
    ours: Callable[[], Any]
    promised: float  # per cent of its names
    absent: dict[str, str]  # reason -> names


def _layers() -> list[str]:
    return [n for n, v in vars(torch.nn).items() if isinstance(v, type) and not n.startswith("_")]


_HELPERS = frozenset(
    """Optional assert_int_or_pair boolean_dispatch handle_torch_function has_torch_function has_torch_function_unary
    has_torch_function_variadic""".split()
)
"""What ``torch.nn.functional`` imports or defines for itself."""


def _functions() -> list[str]:
    found = vars(torch.nn.functional).items()
    return [
        n for n, v in found if callable(v) and not isinstance(v, type) and not n.startswith("_") and n not in _HELPERS
    ]


def _methods() -> list[str]:
    return [n for n in dir(torch.Tensor) if not n.startswith("_")]


def _optimizers() -> list[str]:
    found = ((n, getattr(torch.optim, n)) for n in torch.optim.__all__)
    return [n for n, v in found if isinstance(v, type) and issubclass(v, torch.optim.Optimizer)]


SECTIONS = [
    Section(
        "torch.nn",
        _layers,
        lambda: lz.nn,
        90,
        {
            "deprecated in PyTorch": "Container",
            "training on several devices is a subject of its own": "DataParallel",
        },
    ),
    Section(
        "torch.nn.functional",
        _functions,
        lambda: lz.nn.functional,
        90,
        {"there are no floating-point numbers of eight bits": "scaled_grouped_mm scaled_mm"},
    ),
    Section(
        "torch.Tensor",
        _methods,
        lambda: lz.ones(2, 2),
        80,
        {
            "tensors are dense": """ccol_indices coalesce col_indices crow_indices dense_dim indices resize_as_sparse_ row_indices
                slice_inverse smm sparse_dim sparse_mask sparse_resize_ sparse_resize_and_clear_ sspaddmm to_dense to_sparse
                to_sparse_bsc to_sparse_bsr to_sparse_coo to_sparse_csc to_sparse_csr values""",
            "there are no nested tensors": "to_padded_tensor",
            "there are no quantised dtypes": """dequantize int_repr q_per_channel_axis q_per_channel_scales q_per_channel_zero_points
                q_scale q_zero_point qscheme""",
            "how values lie in memory is decided by the schedule, and nobody writes to it from outside": """as_strided as_strided_
                as_strided_scatter const_data_ptr data_ptr layout new_empty_strided set_ storage storage_type to_mkldnn
                untyped_storage""",
            "memory is given to devices and other processes without it": "pin_memory record_stream share_memory_",
            "a tensor keeps its number of elements": "resize resize_ resize_as resize_as_",
            "x.to(device) moves tensors": "cuda ipu mtia xpu",
            "removed from PyTorch, or left over from its first versions": "eig lstsq new reinforce solve symeig volatile",
            "functions of single elements cannot be compiled": "apply_ map2_ map_",
            "gradients are on their way in one recording; register_hook sees each": "register_post_accumulate_grad_hook",
            "there is no complex dtype of half precision": "chalf",
            "a tensor has the class it was made with": "as_subclass",
            "dimensions have positions and no names": "index",
            "hashlib takes the bytes of x.numpy(); equal() and allclose() compare values": "hash_tensor",
        },
    ),
    Section(
        "torch.optim",
        _optimizers,
        lambda: lz.optim,
        90,
        {"for sparse gradients, and all are dense": "SparseAdam"},
    ),
    Section(
        "torch.optim.lr_scheduler",
        lambda: list(torch.optim.lr_scheduler.__all__),
        lambda: lz.optim.lr_scheduler,
        100,
        {},
    ),
    Section(
        "torch.optim.swa_utils",
        lambda: list(torch.optim.swa_utils.__all__),
        lambda: lz.optim.swa_utils,
        100,
        {},
    ),
]


def _standard(space: Any, *more: str) -> list[str]:
    """Functions, constants and dtypes of a namespace of the array API standard."""
    return [n for n in [*space.__all__, *more] if not n.endswith("_strict_flags") and n not in _OF_STRICT]


_OF_STRICT = frozenset(
    "ArrayAPIStrictFlags Device __version__ __slots__ __module__ __annotations__ __weakref__".split()
)
"""What array-api-strict has for itself."""
_STANDARD = f"Array API {strict.__array_api_version__}"


def standard_sections() -> list[Section]:
    """The standard's namespaces, as array-api-strict has them, and what an array has."""
    array = strict._array_object.Array
    attributes = [n for n in dir(array) if n not in dir(object) and (not n.startswith("_") or n.startswith("__"))]
    listed = [n for n in attributes if n not in _OF_STRICT]
    return [
        Section(_STANDARD, lambda: _standard(strict), lambda: lz.array_api, 100, {}),
        Section(
            f"{_STANDARD}: linalg",
            lambda: _standard(strict.linalg, "eig", "eigvals"),
            lambda: lz.array_api.linalg,
            100,
            {},
        ),
        Section(f"{_STANDARD}: fft", lambda: _standard(strict.fft), lambda: lz.array_api.fft, 100, {}),
        Section(f"{_STANDARD}: methods and attributes", lambda: listed, lambda: lz.ones(2, 2), 100, {}),
    ]


SECTIONS += standard_sections()


class Coverage(NamedTuple):
    """What became of the names of one section."""

    section: Section
    present: list[str]
    absent: dict[str, list[str]]
    missing: list[str]

    @property
    def per_cent(self) -> float:
        total = len(self.present) + sum(map(len, self.absent.values())) + len(self.missing)
        return 100 * len(self.present) / total


def coverage(section: Section) -> Coverage:
    """Look every name up; a reason for a name that is there, or unknown to PyTorch, is an error."""
    names, ours = sorted(section.names()), section.ours()
    present = [n for n in names if hasattr(ours, n)]
    absent = {reason: sorted(listed.split()) for reason, listed in section.absent.items()}
    excused = {n for listed in absent.values() for n in listed}
    wrong = sorted(excused - (set(names) - set(present)))
    if wrong:
        raise ValueError(f"{section.title}: {', '.join(wrong)} cannot be absent on purpose")
    return Coverage(section, present, absent, [n for n in names if n not in excused and not hasattr(ours, n)])


def _listed(names: list[str]) -> str:
    text = ", ".join(f"`{n}`" for n in names)
    return "\n".join(textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False))


def _section(c: Coverage) -> str:
    absent = sum(map(len, c.absent.values()))
    reached = "" if c.per_cent >= c.section.promised else f" ({c.section.promised} % promised, not reached yet)"
    parts = [
        f"## {c.section.title}",
        f"**{c.per_cent:.1f} % present**{reached}: {len(c.present)} present, {absent} deliberately absent, "
        f"{len(c.missing)} missing.",
        f"Present: {_listed(c.present)}.",
    ]
    if c.absent:
        parts.append("Deliberately absent:")
        parts.append(
            "\n".join(f"- {reason}: {', '.join(f'`{n}`' for n in names)}" for reason, names in c.absent.items())
        )
    if c.missing:
        parts.append(f"Missing: {_listed(c.missing)}.")
    return "\n\n".join(parts)


def version() -> str:
    """PyTorch's, as the page names it."""
    return ".".join(torch.__version__.split(".")[:2])


def page() -> str:
    """The whole page."""
    introduction = (
        f"# What there is of PyTorch {version()}\n\n"
        "Written by `tools/coverage_page.py`, which looks every public name up. Names, arguments and results are PyTorch's; "
        "tests\ncompare them. `lezero.linalg` and `lezero.fft` have their own lists. The last sections are about `lezero.array_api`, "
        "and\nabout tensors as the Python array API standard wants arrays to be."
    )
    return "\n\n".join([introduction, *(_section(coverage(s)) for s in SECTIONS)]) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
