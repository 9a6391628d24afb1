"""The command line: ``lezero COMMAND``.

Every command lives in its own module and is imported when it is called, so that ``lezero --help`` is instant.
"""

from __future__ import annotations

import os
import sys
import warnings
from importlib import import_module
from typing import Any

import click

from lezero.codegen.llvm import NoTargetError
from lezero.knobs import KnobError

# name -> (module, function, one line for --help)
COMMANDS = {
    "quickstart": ("quickstart", "quickstart", "Train on handwritten digits, save, open again and classify."),
    "train": ("training", "train", "Train a model and save it as an .lzm file."),
    "eval": ("training", "evaluate", "Measure a saved model on held-out images."),
    "predict": ("predicting", "predict", "Classify images with a saved model."),
    "convert": ("convert", "convert", "Convert weights between file formats, namings and precisions."),
    "explain": ("explain", "explain", "Show what recording and restructuring make of a model."),
    "bench": ("bench", "bench", "Time a few operations and a training step."),
    "cache": ("cache", "cache", "Show or clear the compiled kernels kept on disk."),
    "doctor": ("doctor", "doctor", "Show what was found on this machine and check that it computes."),
    "version": ("version", "version", "Show the version."),
}
FAULT, MISTAKE, INTERRUPTED = 1, 2, 130


class _Commands(click.Group):
    """A group that knows its commands' names and summaries without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, function, _ = COMMANDS[name]
        return getattr(import_module(f"lezero.cli.{module}"), function)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, _, summary) in COMMANDS.items()])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """LeZero trains deep-learning models and takes them to production."""


def main(arguments: list[str] | None = None) -> None:
    """The program's entry point.  Exit codes: 0, 2 for a user's mistake, 130 after Ctrl-C, 1 for a fault of ours."""
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run a command line and return its exit code; what goes wrong is one line on standard error.

    ``LEZERO_TRACEBACK=1`` shows where an error that should not happen came from.
    """
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            return _run(arguments)
    except Exception as error:
        if os.environ.get("LEZERO_TRACEBACK", "0") not in ("", "0"):
            raise
        click.echo(
            f"lezero: this should not have happened: {_line(f'{type(error).__name__}: {error}')}; LEZERO_TRACEBACK=1 shows "
            "where, which is what a report needs",
            err=True,
        )
        return FAULT


def _run(arguments: list[str] | None) -> int:
    try:
        with command.make_context("lezero", sys.argv[1:] if arguments is None else list(arguments)) as context:
            result = command.invoke(context)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return MISTAKE
    except click.ClickException as error:
        where = f" (see {error.ctx.command_path} --help)" if isinstance(error, click.UsageError) and error.ctx else ""
        return _fail(f"{error.format_message().rstrip('.')}{where}")
    except (KeyboardInterrupt, click.Abort) as error:
        after_echo = "\n" if sys.stderr.isatty() else ""  # the terminal has written ^C on this line
        click.echo(f"{after_echo}lezero: {str(error) or 'interrupted'}", err=True)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has seen enough; nothing more can be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno is None or error.filename is None:
            return _fail(str(error))
        return _fail(f"{error.strerror}: {error.filename}")
    except MemoryError as error:
        return _fail(f"not enough memory: {error}" if str(error) else "not enough memory")
    except (KnobError, NoTargetError) as error:  # what the machine lacks, and settings it cannot have
        return _fail(str(error))


def _line(message: str) -> str:
    return " ".join(message.split())


def _warn(message: Any, *_: Any, **__: Any) -> None:
    """A warning without the place in our code that it was raised at."""
    click.echo(f"lezero: warning: {_line(str(message))}", err=True)


def _fail(message: str) -> int:
    line = _line(message)
    click.echo(f"lezero: {line[:1].lower() + line[1:] if line[1:2].islower() else line}", err=True)
    return MISTAKE
