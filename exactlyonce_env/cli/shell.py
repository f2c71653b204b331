"""The shell around every command: lazy loading, and the contract of exit codes and error lines."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from io import TextIOWrapper
from itertools import pairwise
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from exactlyonce_env.cli.commands import COMMANDS
from exactlyonce_env.cli.origin import claim_siblings
from exactlyonce_env.errors import UserError, invalid

__all__ = ["LazyGroup", "build", "run"]

PROGRAM = "exactlyonce"
BAD_INPUT = 2
INTERRUPTED = 130  # 128 + SIGINT
TERMINATED = 143  # 128 + SIGTERM
BROKEN_PIPE = 141  # 128 + SIGPIPE

# Failures to open a file that the user can mend.
FILE_ERRORS = frozenset(
    {
        errno.EACCES,
        errno.EISDIR,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EPERM,
        errno.EROFS,
    }
)

# Failures to write to an open file, stdout among them; such an error names no file.
WRITE_ERRORS = frozenset({errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC})

# Rich help would cost another 0.15 s in front of every `--help`, and reads worse in a pipe.
APP_STYLE: dict[str, Any] = {
    "add_completion": False,
    "rich_markup_mode": None,
    "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": 100},
}


class LazyGroup(TyperGroup):
    """The list of commands; a command's module is imported when the command is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:
        """Return a stand-in that carries the help line, enough for the list of commands."""
        if cmd_name not in COMMANDS:
            return None
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name].help, rich_markup_mode=None)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Load the command that is about to run.

        Raises
        ------
        UserError
            If no command has that name.
        """
        name, *rest = args
        if name not in COMMANDS:
            raise UserError(f"no command {name!r}; {_suggestion(name)}")
        app = typer.Typer(**APP_STYLE)
        app.command(name)(COMMANDS[name].load())
        return name, typer.main.get_command(app), rest


def build() -> LazyGroup:
    """Return the whole command line, with no command module imported."""
    app = typer.Typer(cls=LazyGroup, **APP_STYLE)
    app.callback()(_program)
    group = typer.main.get_group(app)
    assert isinstance(group, LazyGroup)
    return group


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command line under the contract that :mod:`exactlyonce_env.cli` states.

    Parameters
    ----------
    argv
        Arguments without the program's name; None takes those of the process. An empty list asks
        for help.

    Returns
    -------
    int
        The exit code.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    _soften(sys.stdout)
    try:
        claim_siblings()
        with warnings.catch_warnings(), _terminable():
            # Stderr holds one line or nothing, unless the user asked Python for warnings.
            if not sys.warnoptions:
                warnings.simplefilter("ignore")
            return _invoke(args or ["--help"])
    except UserError as error:
        return _refuse(str(error))
    except TyperException as error:
        return _refuse(_usage_line(error))
    except TerminatedError as end:
        _say(str(end) or _interrupt_line(args))
        return TERMINATED
    except KeyboardInterrupt as interrupt:
        _say(str(interrupt) or _interrupt_line(args))
        return INTERRUPTED
    except BrokenPipeError:
        _discard_stdout()
        return BROKEN_PIPE
    except OSError as error:
        if error.filename is None and error.errno in WRITE_ERRORS:
            _discard_stdout()
            return _refuse(f"cannot write the output: {error.strerror}")
        if error.filename is None or error.errno not in FILE_ERRORS:
            raise
        return _refuse(f"cannot open {os.fsdecode(error.filename)!r}: {error.strerror}")


class TerminatedError(KeyboardInterrupt):
    """SIGTERM: the same way out as an interrupt."""


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end a command as Ctrl-C does, with its own exit code.

    Commands that serve or train take the signal over while they run.
    """
    taken = (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    )
    if taken:
        yield
        return
    asked = False

    def ask(number: int, frame: object) -> None:
        nonlocal asked
        asked = True
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGTERM, ask)
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if asked:
            raise TerminatedError(str(interrupt)) from None
        raise
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _invoke(args: list[str]) -> int:
    try:
        group = build()
        with group.make_context(PROGRAM, args) as context:
            group.invoke(context)
        code = 0
    except typer.Exit as end:
        code = end.exit_code
    # Left to the interpreter's shutdown, a closed pipe ends in a message that cannot be caught.
    sys.stdout.flush()
    return code


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"exactlyonce-env {version('exactlyonce-env')}")
        raise typer.Exit


def _program(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    """A write timed out. Did it happen?

    Simulates the question, compares policies that answer it, and finds the waiting bound that your
    own measured delays call for. Each command explains itself with --help.
    """


def _suggestion(name: str) -> str:
    close = get_close_matches(name, COMMANDS, n=2)
    commands = "commands: " + ", ".join(COMMANDS)
    return f"did you mean {' or '.join(map(repr, close))}? {commands}" if close else commands


def _usage_line(error: TyperException) -> str:
    message = error.format_message().strip().rstrip(".")
    if isinstance(error, typer.BadParameter) and error.param is not None:
        from pydantic import ValidationError

        # The parser's own sentence leaves out the value that it complains of.
        if isinstance(error.__cause__, ValidationError):
            place = f"invalid value for {error.param.get_error_hint()}"
            message = str(invalid(place, error.__cause__))
    message = message[:1].lower() + message[1:]
    context = getattr(error, "ctx", None)
    return message if context is None else f"{message} (see '{context.command_path} --help')"


def _interrupt_line(args: Sequence[str]) -> str:
    run_folder = next((value for option, value in pairwise(args) if option == "--out"), None)
    if run_folder is None:
        run_folder = next((a.removeprefix("--out=") for a in args if a.startswith("--out=")), None)
    if run_folder is None:
        return "interrupted; nothing is kept without --out RUN, where finished work can be resumed"
    return f"interrupted; finished work is kept in {run_folder}, run the same command to resume"


def _refuse(message: str) -> int:
    _say(f"error: {message}")
    return BAD_INPUT


def _say(message: str) -> None:
    """Write exactly one line to stderr, whatever control characters the message carries."""
    line = " ".join(message.split())
    print("".join(c if c.isprintable() else ascii(c)[1:-1] for c in line), file=sys.stderr)


def _soften(stream: TextIO) -> None:
    """Let a stream that cannot say every character say "?" for it; JSON is ASCII and suffers none.

    A table that ends in a traceback because the locale lacks "±" would help nobody.
    """
    if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
        stream.reconfigure(errors="replace")


def _discard_stdout() -> None:
    """Send what is still buffered nowhere, so that the interpreter's last flush stays silent."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
