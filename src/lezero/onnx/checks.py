"""What is asked of a program: that its functions come to an end, and, where a call fails, whether it is as the standard declares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from lezero.onnx.program import Body, Call, OnnxError, Program, _bodies, package

MOST_NESTED = 100
"""Functions that may be inside each other."""
MOST_CALLS = 1_000_000
"""Calls that the functions may stand for: doubling at each of 40 levels is how a short file never ends."""


def calls_in(body: Body) -> Iterable[Call]:
    """The calls of a body and of the bodies in it."""
    for call in body.calls:
        yield call
        for inner in _bodies(call):
            yield from calls_in(inner)


def check_functions(program: Program) -> None:
    """Refuse functions that call themselves, or so many others that a call never ends.

    Raises
    ------
    OnnxError
        Naming the function.
    """
    sizes: dict[tuple[str, str, str], tuple[int, int]] = {}  # depth and number of calls; (0, 0) while being measured

    def measure(key: tuple[str, str, str], outer: int) -> tuple[int, int]:
        name = ".".join(filter(None, key))
        if sizes.get(key) == (0, 0):
            raise OnnxError(f"the function {name} calls itself, directly or through others")
        if outer > MOST_NESTED:
            raise OnnxError(f"functions are nested more than {MOST_NESTED} deep at {name}")
        if key not in sizes:
            sizes[key] = (0, 0)
            sizes[key] = within(program.functions[key].body, outer)
        return sizes[key]

    def within(body: Body, outer: int) -> tuple[int, int]:
        depth, count = 1, 0
        for call in calls_in(body):
            key = (call.domain, call.operator, call.overload)
            inner = measure(key, outer + 1) if key in program.functions else (0, 1)
            depth, count = max(depth, inner[0] + 1), count + inner[1]
            if depth + outer > MOST_NESTED or count > MOST_CALLS:
                raise OnnxError(
                    f"{call} stands for more than {MOST_CALLS:,} calls, or functions nested more than {MOST_NESTED} deep"
                )
        return depth, count

    within(program.body, 0)


@cache
def declaration(domain: str, operator: str, version: int) -> Any:
    """The standard's declaration of an operator in a version of its set, None where it has none."""
    onnx = package()
    try:
        return onnx.defs.get_schema(operator, version, domain)
    except onnx.defs.SchemaError:
        return None


def check_call(call: Call, version: int) -> str | None:
    """What of a call is not as the standard declares the operator, to be asked where computing it fails.

    The declarations take the ``onnx`` package 25 ms and 6 MB, so they are not looked at while all goes well.
    """
    declared = declaration(call.domain, call.operator, version)
    if declared is None:
        return None
    least, most, count = declared.min_input, declared.max_input, len(call.inputs)
    if not least <= count <= most:
        wanted = f"{least}" if least == most else f"{least} to {most}" if most < 1 << 20 else f"{least} or more"
        return f"it has {count} operands where version {version} of its set wants {wanted}"
    if len(call.outputs) > declared.max_output:
        return (
            f"it has {len(call.outputs)} results where version {version} of its set wants at most {declared.max_output}"
        )
    return _attributes(call.attributes, declared.attributes)


def _attributes(given: Mapping[str, Any], declared: Mapping[str, Any]) -> str | None:
    unknown = sorted(given.keys() - declared.keys())
    if unknown:
        return f"it has no attribute {unknown[0]!r}; it has {', '.join(sorted(declared)) or 'none'}"
    missing = sorted(name for name, a in declared.items() if a.required and name not in given)
    return f"its attribute {missing[0]!r} is missing" if missing else None
