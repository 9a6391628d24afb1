"""``lezero doctor``."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from importlib import metadata
from typing import Any

import click

from lezero.cli.cache import UNUSABLE
from lezero.knobs import KnobError

_PACKAGES = (
    "numpy",
    "llvmlite",
    "ml_dtypes",
    "rich",
    "click",
    "scikit-learn",
    "onnx",
    "onnxruntime",
    "einops",
    "torch",
)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(as_json: bool) -> int:
    """Show what was found on this machine and check that it computes."""
    facts = _look()
    facts["self_check"] = _self_check()
    if as_json:
        click.echo(json.dumps(facts))
    else:
        _print(facts)
    return 0 if facts["self_check"]["passed"] else 1


def _look() -> dict[str, Any]:
    from lezero import __version__

    return {
        "lezero": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "packages": {name: _installed(name) for name in _PACKAGES},
        "cpu": _cpu(),
        "cores": _cores(),
        "threads": _threads(),
        "cache": _cache(),
        "backends": _backends(),
    }


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> dict[str, Any]:
    from lezero.backends.cpu.detect import available_levels, detect

    try:
        return {"level": detect().level, "available": list(available_levels())}
    except ValueError as error:
        raise click.ClickException(str(error)) from None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _threads() -> int:
    import lezero

    return lezero.get_num_threads()


def _cache() -> dict[str, Any]:
    from lezero.backends.cpu.kernel_cache import DiskCache, cache_folder, writable

    folder = cache_folder()
    entries, nbytes = DiskCache(folder).size()
    return {"folder": str(folder), "writable": writable(folder), "entries": entries, "bytes": nbytes}


def _backends() -> dict[str, str]:
    from lezero.hal import registry

    found = {}
    for name in registry.list_backends():
        try:
            devices = registry.load_backend(name).devices()
            found[name] = ", ".join(str(d) for d in devices)
        except KnobError:
            raise  # the user's to mend, and no property of the backend
        except Exception as error:  # a third party's backend may fail in any way, which is what is wanted to know
            found[name] = f"unusable: {error}"
    return found


def _self_check() -> dict[str, Any]:
    """A matrix product, a convolution and a softmax against NumPy in float64."""
    import numpy as np

    start = time.perf_counter()
    try:
        errors = {name: _error(got, wanted) for name, got, wanted in _small_problems(np)}
    except KnobError:
        raise
    except Exception as error:
        return {"passed": False, "reason": f"{type(error).__name__}: {error}"}
    bad = [name for name, e in errors.items() if not e < 1e-5]
    return {"passed": not bad, "errors": errors, "failed": bad, "seconds": round(time.perf_counter() - start, 3)}


def _small_problems(np: Any) -> list[tuple[str, Any, Any]]:
    import lezero as lz
    from lezero.nn import functional as F

    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((33, 65), (65, 17)))
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((2, 3, 9, 9), (5, 3, 3, 3)))
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(float), (3, 3), axis=(2, 3))
    e = np.exp(a.astype(float) - a.max(1, keepdims=True))
    return [
        ("matmul", lz.tensor(a) @ lz.tensor(b), a.astype(float) @ b),
        ("conv2d", F.conv2d(lz.tensor(x), lz.tensor(w)), np.einsum("nchwij,ocij->nohw", windows, w.astype(float))),
        ("softmax", F.softmax(lz.tensor(a), 1), e / e.sum(1, keepdims=True)),
    ]


def _error(got: Any, wanted: Any) -> float:
    """Largest difference, relative to the largest value."""
    return float(abs(got.numpy() - wanted).max() / abs(wanted).max())


def _print(facts: dict[str, Any]) -> None:
    cpu, cache, check = facts["cpu"], facts["cache"], facts["self_check"]
    packages = ", ".join(f"{n} {v or '(not installed)'}" for n, v in facts["packages"].items())
    unusable = "" if cache["writable"] else f"; {UNUSABLE}"
    rows = [
        ("lezero", facts["lezero"]),
        ("python", facts["python"]),
        ("system", facts["system"]),
        ("packages", packages),
        ("cpu level", f"{cpu['level']} (LEZERO_CPU can lower it to {', '.join(cpu['available'])})"),
        ("cores", f"{facts['cores']}, of which {facts['threads']} are used"),
        ("kernel cache", f"{cache['folder']}: {cache['entries']} kernels, {cache['bytes'] / 2**20:.1f} MiB{unusable}"),
        *((f"backend {name}", devices) for name, devices in facts["backends"].items()),
    ]
    if check["passed"]:
        worst = max(check["errors"].values())
        rows.append(("self-check", f"passed in {check['seconds']:.2f} s (largest relative error {worst:.1e})"))
    else:
        rows.append(
            ("self-check", "FAILED: " + (check.get("reason") or f"wrong results of {', '.join(check['failed'])}"))
        )
    for name, value in rows:
        click.echo(f"{name:<16} {value}")
