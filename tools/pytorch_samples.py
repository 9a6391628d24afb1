"""Run PyTorch's own samples of its operators and layers against ours: results, dtypes, gradients, and what is refused.

    python tools/pytorch_samples.py                        # everything; NumPy backend, so nothing is compiled
    python tools/pytorch_samples.py --only 'pool|conv'     # names that match
    python tools/pytorch_samples.py --dtypes int64,bool,bfloat16 --backend cpu

Needs PyTorch.  What differs is printed by operator,
one line for each kind of difference; names that are not there are listed at the end.
"""

from __future__ import annotations

import argparse
import re
import sys
import traceback
import unittest
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import ml_dtypes
import numpy as np
import torch

# PyTorch's testing code derives its test cases, which are not used here, from those of a package that need not be installed
sys.modules.setdefault("expecttest", SimpleNamespace(TestCase=unittest.TestCase))  # type: ignore[arg-type]

from torch.testing._internal import common_utils  # noqa: E402
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.testing._internal.common_modules import module_db  # noqa: E402
from torch.testing._internal.opinfo import core as opinfo  # noqa: E402

import lezero as lz  # noqa: E402
from lezero.hal.registry import get_backend, set_backend  # noqa: E402

TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-4, "complex64": 2e-4, "float64": 1e-7, "complex128": 1e-7}
RANDOM = re.compile(
    r"dropout|rrelu|^(randn|rand|randint|normal|bernoulli|multinomial|uniform|cauchy|exponential|geometric|log_normal|empty)|"
    r"new_empty|lowrank|fractional"
)
"""Of these, shapes and dtypes are compared, and no values."""


KNOWN = {
    r"[\w.() ]+ error: not refused: $": "numbers are operands of every element-wise function",
    r"nn\.(functional\.ctc_loss|CTCLoss)( \w+)?: gradient 0": (
        "PyTorch adds exp(log_probs) to the gradient, which the log_softmax before it takes out again"
    ),
    r"cholesky_(inverse|solve)( \w+)?: gradient": "PyTorch's gradient has entries for the triangle that is not read, too",
    r"linalg\.(pinv \(singular\)|lstsq \(grad_oriented\))": "the sample is of a function of another kind",
    r"(linalg\.)?cholesky(_ex)? complex\d+: gradient": "PyTorch's is not Hermitian, as the matrix is",
    r"logcumsumexp: gradient": "PyTorch's in float32 is 0.001 off, in float64 it is ours",
    r"nn.functional.batch_norm( \w+)?: ValueError .* got shape \(0,\)": "a vector has no channels",
    r"zero_( \w+)?: RuntimeError .*in-place operation on a leaf": "the sample's own function leaves gradients off",
    r"normal \(in_place\)": "the sample is of normal_",
    r"(sum_to_size|einsum) (bool|u?int\d+): result 0: dtype": "where nothing is added up PyTorch gives int64 now and then",
    r"(all|any) uint8: result 0: dtype": "PyTorch keeps uint8, which was its bool once",
    r"(cumulative_)?trap(z|ezoid) uint8: result 0: values": "PyTorch's products of bytes wrap around",
    r"(scalar_tensor|full_like) uint8: OverflowError": "a number below 0 is no uint8",
    r"arange (int32|uint8): result 0: shape": "PyTorch cuts floats off first for int64 alone",
    r"nn.functional.local_response_norm int64: result 0: dtype": "PyTorch gives an empty tensor back as it is",
    r"nn.functional.(interpolate|upsample).* uint8: result 0: values": (
        "PyTorch blends bytes in fixed-point numbers: up to 20 from what it gives in float64"
    ),
    r"argsort \w+: result 0: values": "which of equal elements comes first is nobody's promise",
    r"(m?sort|topk|mode) (bfloat16|float16): gradient 0: values": "which of equal elements comes first is nobody's promise",
    r"logcumsumexp (bfloat16|float16): gradient 0: values .* for \[0": "PyTorch's gradient is 0 in half precision",
    r"(special\.)?polygamma .*(bfloat16|float16): (result|gradient) 0: values": "rounded once, where PyTorch rounds its terms",
    r"nn.functional.(grid_sample|poisson_nll_loss|hinge_embedding_loss) (bfloat16|float16): (result|gradient) \d: values": (
        "PyTorch rounds every step to half precision; ours are no further from float64"
    ),
    r"(ldexp bfloat16: gradient 1|tan float16: gradient 0): values": "two roundings of PyTorch's; ours are no further from float64",
    r"logspace.* bfloat16: result 0: values": "PyTorch does not round the exponents first",
    r"linalg.vector_norm float16: gradient 0: values .* for \[-?0": "PyTorch's powers underflow in half precision",
    r"histc (bfloat16|float16): result 0: values": "PyTorch finds the bins of numbers in half precision, and misses some",
    r"nextafter \w+: gradient 1: values": "of equal numbers the second is the result, whose gradient it has",
    r"cov \w+: result 0: (dtype|values)": "weights of another precision: PyTorch takes part of the computation in theirs",
    r"svd( \w+)?: result 0: values": "singular vectors are determined up to their signs",
    r"istft complex64: gradient 1": "PyTorch's window has no gradient",
    r"atanh complex64: gradient 0: values": "in float64 it is PyTorch's",
    r"(logaddexp|logsumexp|logcumsumexp|logdet|corrcoef|nn\.functional\.(conv|rms_norm)).* complex64: TypeError": (
        "not of complex numbers"
    ),
    r"matrix_exp (bfloat16|float16): result 0: values .* for \[nan": "PyTorch's overflows in half precision",
    r"nn.functional.soft_margin_loss float16: result 0: values .* for \[ *inf": "PyTorch's overflows in half precision",
    r"(view_as_)?complex float16: result 0: dtype": "there is no complex32",
}
"""What differs and stays so, as patterns of the lines reported, with the reason."""

# -- from PyTorch to here ------------------------------------------------------------------------------------------


def array(t: torch.Tensor) -> np.ndarray:
    t = t.detach().resolve_conj().resolve_neg()
    t = torch.zeros_like(t) if t._is_zerotensor() else t  # gradients of zeros may have no memory
    if t.dtype is torch.bfloat16:
        return t.contiguous().view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return t.numpy(force=True)


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def ours_of(dtype: torch.dtype) -> Any:
    return getattr(lz, {"bool": "bool_"}.get(name_of(dtype), name_of(dtype)))


class Translated:
    """PyTorch's arguments as ours; `leaves` pairs tensors whose gradients are compared."""

    def __init__(self) -> None:
        self.leaves: list[tuple[torch.Tensor, Any]] = []
        self.known: dict[int, Any] = {}

    def tensor(self, t: torch.Tensor) -> Any:
        if id(t) not in self.known:
            made = lz.tensor(array(t).copy())
            if t.requires_grad:
                made.requires_grad_()
                self.leaves.append((t, made))
            self.known[id(t)] = made
        return self.known[id(t)]

    def __call__(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, torch.dtype):
            return ours_of(value)
        if isinstance(value, torch.nn.Module):
            raise Unsupported("a module among the arguments")
        if callable(value) and getattr(torch.nn.functional, getattr(value, "__name__", ""), None) is value:
            return getattr(lz.nn.functional, value.__name__)
        if isinstance(value, dict):
            return {k: self(v) for k, v in value.items()}
        if isinstance(value, torch.Size):
            return tuple(value)
        if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
            return type(value)(map(self, value))
        if isinstance(value, torch.device):
            return str(value)
        if isinstance(value, (torch.layout, torch.memory_format)):
            raise Unsupported(f"argument {value}")
        return value


class Unsupported(Exception):
    """A sample that says nothing about us."""


class Difference(Exception):
    """What is not PyTorch's."""


# -- comparing -----------------------------------------------------------------------------------------------------


def flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for v in value:
            yield from flat(v)
    elif isinstance(value, dict):
        for v in value.values():
            yield from flat(v)
    elif value is not None:
        yield value


def compare(what: str, found: Any, wanted: torch.Tensor, values: bool = True) -> None:
    if tuple(found.shape) != tuple(wanted.shape):
        raise Difference(f"{what}: shape {tuple(found.shape)} for {tuple(wanted.shape)}")
    if found.dtype.name != name_of(wanted.dtype):
        raise Difference(f"{what}: dtype {found.dtype.name} for {name_of(wanted.dtype)}")
    if not values:
        return
    a, b = np.asarray(found.detach().numpy()), array(wanted)
    tol = TOLERANCE.get(name_of(wanted.dtype), 0)
    wide = np.complex128 if wanted.is_complex() else np.float64 if tol else None
    a, b = (a.astype(wide), b.astype(wide)) if wide else (a, b)
    sizes = np.abs(b[np.isfinite(b)]) if b.size else b
    scale = max(1.0, float(sizes.max())) if sizes.size and wide else 1.0
    if wide and not np.allclose(a, b, rtol=tol, atol=tol * min(scale, 1e3), equal_nan=True):
        raise Difference(f"{what}: values {brief(a)} for {brief(b)}")
    if not wide and not np.array_equal(a, b):
        raise Difference(f"{what}: values {brief(a)} for {brief(b)}")


def brief(a: np.ndarray) -> str:
    return np.array2string(a.reshape(-1)[:4], precision=4)


def gradients(ours: list, theirs: list, leaves: list) -> None:
    rng = np.random.default_rng(0)
    total, other = [], []
    for y, z in zip(ours, theirs):
        if not (isinstance(z, torch.Tensor) and z.requires_grad):
            continue
        seed = torch.tensor(rng.standard_normal(tuple(z.shape)), dtype=z.dtype)
        total.append((y, lz.tensor(array(seed))))
        other.append((z, seed))
    if not other:
        return
    try:
        wanted = torch.autograd.grad(
            [z for z, _ in other], [t for t, _ in leaves], [g for _, g in other], allow_unused=True
        )
    except Exception as error:
        raise Unsupported(f"PyTorch has no gradient: {error}") from None
    tracked = [(y, g) for y, g in total if y.requires_grad]
    if tracked:
        lz.autograd.backward([y for y, _ in tracked], [g for _, g in tracked])
    for k, ((_, leaf), grad) in enumerate(zip(leaves, wanted)):
        if grad is None or leaf.grad is None:
            if (grad is not None and array(grad).any()) or (leaf.grad is not None and leaf.grad.numpy().any()):
                raise Difference(f"gradient {k}: {leaf.grad if grad is None else 'none'} for {grad}")
            continue
        compare(f"gradient {k}", leaf.grad, grad)


# -- operators -----------------------------------------------------------------------------------------------------


_DIFFERENTLY_CALLED: dict[str, Callable] = {
    "where": lambda x, condition, other: lz.where(condition, x, other),
    "einsum": lambda tensors, equation: lz.einsum(equation, tensors),
    "nn.functional.embedding": lambda weight, index, **options: lz.nn.functional.embedding(index, weight, **options),
    "nn.functional.embedding_bag": lambda weight, index, **options: lz.nn.functional.embedding_bag(
        index, weight, **options
    ),
}
"""Where a sample's arguments come in another order than the function's."""


def ours_called(op: Any) -> Callable | None:
    """Our function of an operator's name, or the method."""
    if op.name in _DIFFERENTLY_CALLED:
        return _DIFFERENTLY_CALLED[op.name]
    place: Any = lz
    for part in op.name.split("."):
        place = getattr(place, part, None)
        if place is None:
            break
    if callable(place):
        return place
    if op.name.startswith("__") or hasattr(lz.ones(2, 2), op.name):

        def method(x: Any, *args: Any, **kwargs: Any) -> Any:
            found = getattr(x, op.name)
            return found(*args, **kwargs) if callable(found) else found

        return method
    return None


def spread(samples: list, most: int) -> list:
    """At most so many of them, from all over the list: corner cases often come last."""
    if len(samples) <= most:
        return samples
    return [samples[k * (len(samples) - 1) // max(1, most - 1)] for k in range(most)]


def sampled(op: Any, dtype: torch.dtype) -> Iterator[Any]:
    grad = bool(op.supports_autograd and dtype in op.supported_backward_dtypes("cpu"))
    torch.manual_seed(0)
    yield from op.sample_inputs("cpu", dtype, requires_grad=grad and (dtype.is_floating_point or dtype.is_complex))


def one_sample(op: Any, ours: Callable, sample: Any) -> None:
    into = Translated()
    arguments = into(sample.input), into(list(sample.args)), into(sample.kwargs)
    try:
        theirs = op(sample.input, *sample.args, **sample.kwargs)
    except Exception as error:
        raise Unsupported(str(error)) from None
    found = ours(arguments[0], *arguments[1], **arguments[2])
    if isinstance(found, Iterator):
        found = list(found)
    process = sample.output_process_fn_grad if op.name.startswith("linalg.") else lambda results: results
    a, b = list(flat(process(theirs))), list(flat(process(found)))
    if len(a) != len(b):
        raise Difference(f"{len(b)} results for {len(a)}")
    random = bool(RANDOM.search(op.name.split(".")[-1])) or drops(sample)
    for k, (y, z) in enumerate(zip(b, a)):
        if isinstance(z, torch.Tensor):
            compare(f"result {k}", y, z, values=not random and not (k and op.name in PLACES))
        elif not isinstance(z, torch.Tensor) and not np.array_equal(y, z, equal_nan=isinstance(z, float)):
            raise Difference(f"result {k}: {y!r} for {z!r}")
    if not random:
        gradients(b, a, into.leaves)


PLACES = ("kthvalue", "median", "mode", "nanmedian", "sort", "topk")
"""Which of equal elements these find is nobody's promise; where their values are PyTorch's, so are the places of others."""


def drops(sample: Any) -> bool:
    """Whether numbers are drawn for dropout."""
    named = sample.kwargs
    return bool(
        named.get("dropout_p")
        or any(isinstance(a, float) and a == 0.5 for a in sample.args)
        or named.get("lambda_") == "random"
    )


def one_error(ours: Callable, error: Any) -> None:
    sample, into = error.sample_input, Translated()
    try:
        arguments = into(sample.input), into(list(sample.args)), into(sample.kwargs)
    except (AttributeError, TypeError, ValueError):
        raise Unsupported("an argument we have no counterpart of") from None
    try:
        found = ours(arguments[0], *arguments[1], **arguments[2])
        for y in flat(found):
            if isinstance(y, lz.Tensor):
                y.numpy()
    except (ValueError, TypeError, RuntimeError, IndexError, NotImplementedError, AttributeError):
        return
    raise Difference(f"not refused: {error.error_regex}")


def trial(report: Any, name: str, sample: Any, call: Callable[[], None]) -> None:
    report.tried += 1
    try:
        call()
    except Unsupported:
        report.passed_over += 1
    except Difference as difference:
        report.add(name, str(difference), sample)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        report.add(name, f"{type(error).__name__} at {last.filename.split('/')[-1]}:{last.lineno}: {error}", sample)


def shown(sample: Any) -> str:
    def one(v: Any) -> str:
        if isinstance(v, torch.Tensor):
            return f"{name_of(v.dtype)}{list(v.shape)}"
        if isinstance(v, (tuple, list)):
            return "(" + ", ".join(map(one, v)) + ")"
        return repr(v)

    keywords = [f"{k}={one(v)}" for k, v in sample.kwargs.items()]
    return ", ".join([one(getattr(sample, "input", ())), *map(one, sample.args), *keywords])


class Report:
    """Differences by operator, alike ones together."""

    def __init__(self) -> None:
        self.found: dict[str, Counter] = defaultdict(Counter)
        self.first: dict[tuple[str, str], str] = {}
        self.tried = self.passed_over = self.known = 0
        self.absent: list[str] = []

    def add(self, name: str, text: str, sample: Any) -> None:
        text = text.split("\n", maxsplit=1)[0][:200]
        if any(re.match(pattern, f"{name}: {text}") for pattern in KNOWN):
            self.known += 1
            return
        kind = re.sub(r"[-\d.e+]+", "#", text)
        self.found[name][kind] += 1
        self.first.setdefault((name, kind), f"{text}    [{shown(sample)}]")

    def text(self) -> str:
        lines = []
        for name, kinds in self.found.items():
            lines += [f"{name}: {count}x {self.first[name, kind]}" for kind, count in kinds.items()]
        different = sum(map(Counter.total, self.found.values()))
        lines.append(f"not there: {' '.join(dict.fromkeys(self.absent))}")
        lines.append(
            f"{self.tried} samples, {self.passed_over} that PyTorch refuses, {self.known} known, {different} differ"
        )
        return "\n".join(lines)


def operators(options: argparse.Namespace, report: Report) -> list[str]:
    absent = []
    for op in op_db:
        name = op.name + (f" ({op.variant_test_name})" if op.variant_test_name else "")
        if not re.search(options.only, name) or op.name.startswith(("sparse", "jiterator", "torch.", "_")):
            continue
        ours = ours_called(op)
        if ours is None:
            absent.append(op.name)
            continue
        for dtype in (getattr(torch, d) for d in options.dtypes.split(",")):
            if dtype in op.dtypes:
                label = name if dtype is torch.float32 else f"{name} {name_of(dtype)}"
                for sample in spread(list(sampled(op, dtype)), options.most):
                    trial(report, label, sample, partial(one_sample, op, ours, sample))
        if op.error_inputs_func is not None and options.errors:
            for error in op.error_inputs("cpu"):
                trial(report, f"{name} error", error.sample_input, partial(one_error, ours, error))
    return absent


# -- layers --------------------------------------------------------------------------------------------------------


def one_module(info: Any, sample: Any, training: bool) -> None:
    into = Translated()
    built = sample.constructor_input
    ours_class = lz.nn
    for part in info.name.split(".")[1:]:
        ours_class = getattr(ours_class, part)
    theirs = info.module_cls(*built.args, **built.kwargs).train(training)
    ours = ours_class(*into(list(built.args)), **into(built.kwargs)).train(training)
    given = sample.forward_input
    arguments = into(list(given.args)), into(given.kwargs)
    lazy = "Lazy" in info.name
    if not lazy:
        state = {k: lz.tensor(array(v)) for k, v in theirs.state_dict().items()}
        ours.load_state_dict(state)
        into.leaves += list(zip(theirs.parameters(), ours.parameters()))
    try:
        wanted = theirs(*given.args, **given.kwargs)
    except Exception as error:
        raise Unsupported(str(error)) from None
    found = ours(*arguments[0], **arguments[1])
    a, b = list(flat(wanted)), list(flat(found))
    if len(a) != len(b):
        raise Difference(f"{len(b)} results for {len(a)}")
    random = lazy or (training and any(isinstance(m, torch.nn.Dropout) and m.p for m in theirs.modules()))
    random = random or "Fractional" in info.name
    for k, (y, z) in enumerate(zip(b, a)):
        compare(f"result {k}", y, z, values=not random)
    if not random:
        gradients(b, a, into.leaves)


def layers(options: argparse.Namespace, report: Report) -> list[str]:
    absent = []
    for info in module_db:
        if not re.search(options.only, info.name):
            continue
        if not hasattr(lz.nn, info.name.split(".")[-1]):
            absent.append(info.name)
            continue
        for training in (True, False):
            torch.manual_seed(0)
            inputs = info.module_inputs_func(
                info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
            )
            for sample in inputs[: options.most]:
                trial(
                    report, info.name, sample.forward_input or sample.constructor_input,
                    partial(one_module, info, sample, training),
                )  # fmt: skip
    return absent


@contextmanager
def without_stacks() -> Iterator[None]:
    """PyTorch's samples look at the stack for a test case that there is not, and note it with every seed: half of the time."""
    with (
        patch.object(opinfo, "extract_test_fn", lambda: None),
        patch.object(common_utils, "extract_test_fn", lambda: None),
        patch.object(torch, "manual_seed", torch.default_generator.manual_seed),
    ):
        yield


def run(words: list[str]) -> Report:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a pattern of names")
    parser.add_argument("--dtypes", default="float32")
    parser.add_argument("--backend", default="numpy")
    parser.add_argument("--most", type=int, default=10**6, help="samples of each operator and dtype, or layer")
    parser.add_argument("--no-errors", dest="errors", action="store_false")
    parser.add_argument("--no-layers", dest="layers", action="store_false")
    options = parser.parse_args(words)
    before = get_backend()
    set_backend(options.backend)
    report = Report()
    try:
        with warnings.catch_warnings(), without_stacks():
            warnings.simplefilter("ignore")
            report.absent = operators(options, report) + (layers(options, report) if options.layers else [])
    finally:
        set_backend(before)
    return report


def main() -> int:
    report = run(sys.argv[1:])
    print(report.text())
    return bool(report.found)


if __name__ == "__main__":
    sys.exit(main())
