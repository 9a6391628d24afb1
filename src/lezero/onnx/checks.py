"""What is asked of a program: that its functions come to an end, and, where a call fails, whether it is as the standard declares."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

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


class Declaration(NamedTuple):
    """What the standard says of an operator: how many operands and results it has, and which attributes."""

    least: int
    most: int
    results: int
    attributes: tuple[str, ...]
    required: tuple[str, ...]


@cache
def declaration(domain: str, operator: str, version: int) -> Declaration | None:
    """The standard's declaration of an operator in a version of its set, None where it has none."""
    onnx = package()
    try:
        schema = onnx.defs.get_schema(operator, version, domain)
    except onnx.defs.SchemaError:
        return None
    attributes = schema.attributes
    required = tuple(sorted(name for name, a in attributes.items() if a.required))
    return Declaration(schema.min_input, schema.max_input, schema.max_output, tuple(sorted(attributes)), required)


def check_call(call: Call, version: int) -> str | None:
    """What of a call is not as the standard declares the operator, to be asked where computing it fails.

    The declarations take the ``onnx`` package 25 ms and 6 MB, so they are not looked at while all goes well.
    """
    declared = declaration(call.domain, call.operator, version)
    if declared is None:
        return None
    least, most, count = declared.least, declared.most, len(call.inputs)
    if not least <= count <= most:
        wanted = f"{least}" if least == most else f"{least} to {most}" if most < 1 << 20 else f"{least} or more"
        return f"it has {count} operands where version {version} of its set wants {wanted}"
    if len(call.outputs) > declared.results:
        return f"it has {len(call.outputs)} results where version {version} of its set wants at most {declared.results}"
    unknown = next((name for name in call.attributes if name not in declared.attributes), None)
    if unknown is not None:
        return f"it has no attribute {unknown!r}; it has {', '.join(declared.attributes) or 'none'}"
    missing = next((name for name in declared.required if name not in call.attributes), None)
    return None if missing is None else f"its attribute {missing!r} is missing"
