"""The page on arrays: its programs, and scikit-learn with tensors."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def programs(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.DOTALL)


def output(program):
    """Of a process of its own: SciPy looks at its switch when it is first imported."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"SCIPY_ARRAY_API": "1"},
    )
    assert not done.returncode, done.stderr
    return done.stdout.splitlines()


def test_the_programs_of_the_page_run():
    pytest.importorskip("einops")
    pytest.importorskip("sklearn", minversion="1.8")
    standardised, shared, shapes, learned = output("\n".join(programs("arrays.md")))
    difference, shape = standardised.split(" ", 1)
    assert float(difference) < 1e-5 and shape == "(100, 4)"
    assert shared == "True True" and shapes == "(2, 4, 48) (2, 10)"
    assert learned.startswith("Tensor 9")


def test_the_programs_are_the_same_in_chinese():
    plain = [[re.sub(r" *#.*", "", p) for p in programs(page)] for page in ("arrays.md", "arrays.zh-CN.md")]
    assert plain[0] == plain[1]


ESTIMATORS = """
import numpy as np, sklearn, lezero as lz
from sklearn.decomposition import PCA
from sklearn.linear_model import Ridge
from sklearn.naive_bayes import GaussianNB
from sklearn.preprocessing import StandardScaler, MinMaxScaler
sklearn.set_config(array_api_dispatch=True)
x = np.random.default_rng(0).normal(size=(60, 4))
y = (x[:, 0] + x[:, 1] > 0).astype(np.int64)
for name, call in {
    "pca": lambda x, y: abs(PCA(2, svd_solver="full").fit(x).transform(x)),
    "scaled": lambda x, y: StandardScaler().fit_transform(x),
    "bounded": lambda x, y: MinMaxScaler().fit_transform(x),
    "ridge": lambda x, y: Ridge(solver="svd").fit(x, x[:, 0]).predict(x),
    "bayes": lambda x, y: GaussianNB().fit(x, y).predict(x),
}.items():
    got, wanted = call(lz.tensor(x), lz.tensor(y)), call(x, y)
    print(name, type(got).__name__, np.allclose(got.numpy(), wanted, rtol=1e-6, atol=1e-9))
"""


def test_estimators_of_scikit_learn_give_tensors_of_what_they_give_of_arrays():
    pytest.importorskip("sklearn", minversion="1.8")
    assert output(ESTIMATORS) == [f"{name} Tensor True" for name in ("pca", "scaled", "bounded", "ridge", "bayes")]
