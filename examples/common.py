"""What the examples share: their options, where their data are, and what is said of mistakes."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path

import fetch
import lezero as lz
from lezero.trainer import Callback, Trainer

HOME = fetch.HOME
MAY_CHANGE = {"ask", "checkpoints", "data", "model", "sample", "start"}  # in a run that is continued
DTYPES = {"float32": None, "bfloat16": lz.bfloat16}


class Mistake(Exception):
    """What the user can mend: :func:`start` prints it, and the program ends with status 2."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str):
        raise Mistake(f"{message} (--help lists the options)")


def whole(least: int = 1, multiple_of: int = 1) -> Callable[[str], int]:
    """What an option's `type` is for a whole number of at least `least`."""

    def convert(text: str) -> int:
        number = int(text) if text.strip().lstrip("+-").isdecimal() else least - 1
        if not least <= number < 2**63 or number % multiple_of:
            kind = f"a multiple of {multiple_of}" if multiple_of > 1 else "a whole number"
            raise argparse.ArgumentTypeError(f"{text!r} is not {kind} of at least {least}")
        return number

    return convert


def positive(text: str) -> float:
    """What an option's `type` is for a number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def arguments(
    description: str, *, epochs: int, batch_size: int, data: str | None, checkpoints: bool = True
) -> argparse.ArgumentParser:
    """A parser with the options that every example has; `data` is a name of :mod:`fetch`, or None where the
    example decides where its data are."""
    p = _Parser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--epochs", type=whole(), default=epochs, help=f"passes over the data [{epochs}]")
    p.add_argument("--batch-size", type=whole(), default=batch_size, help=f"samples in a step [{batch_size}]")
    p.add_argument("--dtype", choices=DTYPES, default="float32", help="bfloat16 is mixed precision [float32]")
    p.add_argument("--seed", type=whole(0), default=0, help="makes the run repeatable [0]")
    if checkpoints:
        p.add_argument("--checkpoints", type=Path, help="folder to save to after every epoch, and to continue from")
    home = data and fetch.HOME / data
    p.add_argument("--data", type=Path, default=home, help=f"folder with the data [{home or fetch.HOME}]")
    return p


def start(main: Callable[[], None]) -> None:
    """Run an example; mistakes (status 2) and Ctrl-C (130) end it with what is to be said instead of a traceback."""
    try:
        main()
    except Mistake as mistake:
        print(f"{Path(sys.argv[0]).name}: {mistake}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt as stopped:
        print(str(stopped).replace("with resume=True", "by the same command") or "stopped", file=sys.stderr)
        sys.exit(130)


def low_type(args: argparse.Namespace):
    """What a Trainer's `autocast` is, for ``--dtype``."""
    return DTYPES[args.dtype]


def find(folder: Path, pattern: str, name: str, option: str = "--data") -> list[Path]:
    """The files that match somewhere under `folder`.

    name : of :mod:`fetch`; option : what names the folder.

    Raises
    ------
    Mistake
        If there are none; says how to get them.
    """
    found = sorted(folder.rglob(pattern)) if folder.is_dir() else []
    if not found:
        where = f"no {pattern} in {str(folder)!r}" if folder.is_dir() else f"no folder or file {str(folder)!r}"
        raise Mistake(f"there is {where}.\n{fetch.advice(name, option)}")
    return found


class _SameOptions(Callback):
    """Refuses a checkpoint of other options: what is trained, or its schedule, would be another one."""

    def __init__(self, args: argparse.Namespace):
        self.options = {"program": Path(sys.argv[0]).stem}
        self.options |= {name: value for name, value in vars(args).items() if name not in MAY_CHANGE}
        self.begun = False

    def state_dict(self):
        return self.options

    def load_state_dict(self, state) -> None:
        if not isinstance(state, dict) or state.keys() != self.options.keys():
            raise ValueError("it is another program's")
        changed = [f"{name} was {state[name]}, not {now}" for name, now in self.options.items() if state[name] != now]
        if changed:
            raise ValueError(f"it was begun with other options ({'; '.join(changed)})")

    def on_fit_begin(self, trainer) -> None:
        self.begun = True


def fit(trainer: Trainer, loader, held_out, args: argparse.Namespace) -> list[dict[str, float]]:
    """The history of a training as the options say: continued, where ``--checkpoints`` has its beginning.

    Raises
    ------
    Mistake
        If that folder cannot be used, or holds what cannot be continued.
    """
    same = _SameOptions(args)
    trainer.callbacks.insert(0, same)
    try:
        if args.checkpoints:
            args.checkpoints.mkdir(parents=True, exist_ok=True)
        return trainer.fit(
            loader, held_out, epochs=args.epochs, checkpoints=args.checkpoints, resume=bool(args.checkpoints)
        )
    except (OSError, ValueError, RuntimeError) as error:
        if same.begun or not args.checkpoints:
            raise
        said = error.strerror if isinstance(error, OSError) else str(error).split("\n")[0]
        raise Mistake(f"--checkpoints: {args.checkpoints} cannot be continued: {said}; name another folder") from error
