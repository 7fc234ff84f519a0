"""The sub-commands of `synther` and what happens to their errors.

Exit status: 0 for success, 1 for an error (one line on stderr), 2 for wrong usage, 130 after Ctrl-C.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import typer

import synther_replay
from synther_replay.cli.commands import bench, fit, info, report, sample, upsample, watch
from synther_replay.cli.work import WorkFolder
from synther_replay.errors import is_out_of_memory
from synther_replay.files.formats import located

# A new sub-command is a module with a function of its name and an entry here.
COMMANDS: tuple[Callable[..., None], ...] = (
    upsample.upsample,
    fit.fit,
    sample.sample,
    info.info,
    report.report,
    bench.bench,
    watch.watch,
)
_EXPECTED = (ValueError, OSError, ImportError, RuntimeError, MemoryError)  # everything else is a fault of ours

app = typer.Typer(
    name="synther",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run() -> None:
    """Parse the command line, run a sub-command and exit."""
    warnings.showwarning = _show_warning
    try:
        app(prog_name="synther")
    except KeyboardInterrupt:  # before a sub-command began
        sys.exit(130)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"synther {synther_replay.__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, help="Print the version and exit.", is_eager=True)
    ] = False,
) -> None:
    """Synthetic experience replay: turn a small set of transitions into a large one.

    Examples:
        synther upsample hopper.hdf5 more.hdf5 --times 10
        synther info more.hdf5

    Formats, by suffix: D4RL's HDF5 (.hdf5, .h5), NumPy (.npz), Parquet (.parquet), and Minari (a folder or
    minari:NAME-v0).
    """


def _with_exit_status(command: Callable[..., None]) -> Callable[..., None]:
    """Turn errors of a sub-command into one line and an exit status."""

    @functools.wraps(command)
    def call(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except KeyboardInterrupt:
            _complain("interrupted; run the same command to go on" if _is_kept(kwargs.get("out")) else "interrupted")
            raise typer.Exit(130) from None
        except Exception as error:
            if type(error).__module__.startswith(("typer", "click")):  # wrong usage, and exits
                raise
            if os.environ.get("SYNTHER_DEBUG"):
                raise
            _complain(f"error: {_in_one_line(error)}")
            raise typer.Exit(1) from None

    return call


def _is_kept(out: str | None) -> bool:
    """Whether the model or rows of an interrupted command wait beside its output; most commands keep nothing."""
    if out is None:
        return False
    try:
        path, _ = located(out, exists=False)
    except (ValueError, OSError, ImportError):  # interrupted before the output was checked
        return False
    return WorkFolder.is_left(path)


def _in_one_line(error: Exception) -> str:
    text = str(error)
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    text = " ".join(text.split())  # names of files may have several lines, too
    if is_out_of_memory(error):
        return f"out of memory ({text or 'no details'})"
    if isinstance(error, _EXPECTED):
        return text or type(error).__name__
    return f"unexpected {type(error).__name__}: {text}; set SYNTHER_DEBUG=1 for a traceback"


def _complain(message: str) -> None:
    print(f"synther: {message}", file=sys.stderr)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    _complain(f"warning: {' '.join(str(message).split())}")


def _help(command: Callable[..., None]) -> str:
    """Return the docstring with a mark that keeps the lines of the examples apart."""
    return inspect.cleandoc(command.__doc__ or "").replace("Examples:\n", "\b\nExamples:\n")


app.callback(help=_help(_options))(_options)
for _command in COMMANDS:
    app.command(help=_help(_command))(_with_exit_status(_command))
