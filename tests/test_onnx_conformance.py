"""The backend suite of the ``onnx`` package: every operator's cases, and nine small classic networks.

Each case runs.  One that is excluded must fail, so that the list says no more than is true.  What cases do is compile 1,500
kernels that run once; so LLVM optimises little, and what it optimises is for other tests (LEZERO_COMPILE_EFFORT=3 asks for it).
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the cases come with the onnx package: pip install 'lezero[onnx]'")
pytest.importorskip("PIL", reason="pictures of ImageDecoder's cases are read by Pillow: pip install pillow")

from onnx import numpy_helper  # noqa: E402
from onnx.backend.test.case.node import collect_testcases  # noqa: E402

from lezero.onnx import backend  # noqa: E402

RANDOM = "random numbers: other generators draw others, as the standard says"
ROUNDED = "the reference was computed in float32 and has 1.9e-7 where 0 is right, with a tolerance of 1e-7"
HALF = "float16: two or three results are two steps from the reference's, and the tolerance is one"

EXCLUDED = {
    "test_attention_4d_causal_fp16": HALF,
    "test_attention_4d_causal_fp16_expanded": HALF,
    "test_attention_4d_gqa_with_past_and_present_fp16": HALF,
    "test_bernoulli": RANDOM,
    "test_bernoulli_double": RANDOM,
    "test_bernoulli_double_expanded": RANDOM,
    "test_bernoulli_expanded": RANDOM,
    "test_bernoulli_seed": RANDOM,
    "test_bernoulli_seed_expanded": RANDOM,
    "test_training_dropout": RANDOM,
    "test_training_dropout_default": RANDOM,
    "test_training_dropout_default_mask": RANDOM,
    "test_training_dropout_mask": RANDOM,
    "test_dft_inverse": ROUNDED,
    "test_dft_inverse_opset19": ROUNDED,
}


PARTS = 2


def as_array(value):
    for message, convert in {
        onnx.TensorProto: numpy_helper.to_array,
        onnx.SequenceProto: numpy_helper.to_list,
        onnx.OptionalProto: numpy_helper.to_optional,
    }.items():
        if isinstance(value, message):
            return convert(value)
    return value


def compare(got, want, rtol, atol):
    """As the suite does, which cannot compare sequences of numbers."""
    if isinstance(want, (list, tuple)):
        assert isinstance(got, (list, tuple)) and len(got) == len(want)
        for g, w in zip(got, want):
            compare(g, w, rtol, atol)
        return
    want = np.asarray(want)
    assert got.shape == want.shape, f"shape {got.shape}, not {want.shape}"
    if want.dtype.kind in "OSU":
        np.testing.assert_array_equal(got, want)
        return
    assert got.dtype == want.dtype, f"{got.dtype}, not {want.dtype}"
    if want.dtype.kind not in "biufc":  # types that NumPy does not know, bfloat16 with two of its steps
        rtol = max(rtol, 2**-6) if want.dtype.name == "bfloat16" else rtol
        got, want = got.astype(np.float32), want.astype(np.float32)
    np.testing.assert_allclose(got, want, rtol, atol)


def fault(case):
    """What is wrong with a case, or None."""
    try:
        model = backend.prepare(case.model)
        for given, want in case.data_sets:
            got = model.run([as_array(v) for v in given])
            compare(got, [as_array(v) for v in want], case.rtol, case.atol)
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        return f"{type(error).__name__}: {' '.join(lines[:3])}"
    return None


def of_default_domain(case):
    return all(node.domain in ("", "ai.onnx") for node in case.model.graph.node)


def part_of_outcomes(part):
    """How many cases there are, and of some neighbouring ones, which have kernels in common: name, whether its operators are of
    the default domain, and what is wrong."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # generators of cases divide by zero and overflow
        cases = collect_testcases(None)
        begin, end = (len(cases) * k // PARTS for k in (part, part + 1))
        return len(cases), [(case.name, of_default_domain(case), fault(case)) for case in cases[begin:end]]


@cache
def outcomes():
    """Of all cases, by name: whether it is of the default domain, and what is wrong."""
    environment = {"LEZERO_COMPILE_EFFORT": "0"} | os.environ | {"LEZERO_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen([sys.executable, __file__, str(k)], stdout=subprocess.PIPE, text=True, env=environment)
        for k in range(PARTS)
    ]
    parts = [json.loads(process.communicate()[0]) for process in processes]
    found = {name: (default, why) for _, part in parts for name, default, why in part}
    assert all(count == len(found) for count, _ in parts)
    return found


def test_cases_of_operators():
    wrong = {name: why for name, (_, why) in outcomes().items() if why is not None and name not in EXCLUDED}
    assert not wrong, "\n".join(f"{name}: {why}" for name, why in wrong.items())


def test_what_is_excluded_fails():
    passing = [name for name in EXCLUDED if outcomes()[name][1] is None]  # a name that is not in the suite raises
    assert not passing, f"no longer to be excluded: {', '.join(passing)}"


def test_nearly_all_cases_of_the_default_domain_pass():
    faults = [why for default, why in outcomes().values() if default]
    passed = faults.count(None)
    assert len(faults) > 1800 and passed >= 0.95 * len(faults), f"{passed} of {len(faults)}"


LIGHT = sorted((Path(onnx.__file__).parent / "backend/test/data/light").glob("light_*.onnx"))


def test_the_networks_are_there():
    assert len(LIGHT) == 9


@pytest.mark.parametrize("path", LIGHT, ids=lambda p: p.stem)
def test_networks(path):
    model = backend.prepare(onnx.load(path))
    (declared,) = model.module.program.body.inputs
    count = int(np.prod(declared.shape))
    (got,) = model.run([(np.arange(count).reshape(declared.shape) / count).astype(np.float32)])
    want = numpy_helper.to_array(onnx.load_tensor(path.with_name(f"{path.stem}_output_0.pb")))
    np.testing.assert_allclose(got, want, 1e-3, 1e-7)  # the suite's tolerances
    del model
    gc.collect()


if __name__ == "__main__":
    json.dump(part_of_outcomes(int(sys.argv[1])), sys.stdout)
