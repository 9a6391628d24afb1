"""What the examples share: their options, and where their data are."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import fetch
import lezero as lz

HOME = fetch.HOME
DTYPES = {"float32": None, "bfloat16": lz.bfloat16}


def arguments(
    description: str, *, epochs: int, batch_size: int, data: str | None, checkpoints: bool = True
) -> argparse.ArgumentParser:
    """A parser with the options that every example has; `data` is a name of :mod:`fetch`, or None where the
    example decides where its data are."""
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--epochs", type=int, default=epochs, help=f"passes over the data [{epochs}]")
    p.add_argument("--batch-size", type=int, default=batch_size, help=f"samples in a step [{batch_size}]")
    p.add_argument("--dtype", choices=DTYPES, default="float32", help="bfloat16 is mixed precision [float32]")
    p.add_argument("--seed", type=int, default=0, help="makes the run repeatable [0]")
    if checkpoints:
        p.add_argument("--checkpoints", type=Path, help="folder to save to after every epoch, and to continue from")
    home = data and fetch.HOME / data
    p.add_argument("--data", type=Path, default=home, help=f"folder with the data [{home or fetch.HOME}]")
    return p


def start(main: Callable[[], None]) -> None:
    """Run an example; Ctrl-C ends it with a line instead of a traceback."""
    try:
        main()
    except KeyboardInterrupt as stopped:
        print(str(stopped).replace("with resume=True", "by the same command") or "stopped", file=sys.stderr)
        sys.exit(130)


def low_type(args: argparse.Namespace):
    """What a Trainer's `autocast` is, for ``--dtype``."""
    return DTYPES[args.dtype]


def find(folder: Path, pattern: str, name: str, option: str = "--data") -> list[Path]:
    """The files that match somewhere under `folder`; without any, the program ends and says how to get them.

    name : of :mod:`fetch`; option : what names the folder.
    """
    found = sorted(folder.rglob(pattern)) if folder.is_dir() else []
    if not found:
        where = f"no {pattern} in {str(folder)!r}" if folder.is_dir() else f"no folder or file {str(folder)!r}"
        sys.exit(f"there is {where}.\n{fetch.advice(name, option)}")
    return found
