"""The `exactlyonce` command, where all four packages meet.

Adding a command
----------------
1. Write a plain typed function in a module of this package. Its signature is the command line:
   typer reads the annotations, and the docstring is what ``exactlyonce NAME --help`` prints.

   >>> from typing import Annotated
   >>> import typer
   >>> from exactlyonce_env.cli.output import JsonTarget, human_console, write_json
   >>> def worlds(
   ...     preset: Annotated[str, typer.Argument(metavar="PRESET", help="Preset to draw from.")],
   ...     seed: Annotated[int, typer.Option(min=0, help="Seed of the suite.")] = 0,
   ...     json_target: JsonTarget = None,
   ... ) -> None:
   ...     '''Print drawn worlds, hidden fates included.'''
   ...     rows = [{"preset": preset, "seed": seed}]
   ...     if json_target is not None:
   ...         write_json(rows, json_target)
   ...     human_console(json_target).print(f"{len(rows)} world drawn")

2. Add one line to :data:`exactlyonce_env.cli.commands.COMMANDS`: name, module, function, help
   line. The module is imported only when its command runs, so ``exactlyonce --help`` stays fast.
   A command module in turn imports what is slow (numba kernels, scipy.stats, pandas, matplotlib)
   inside its functions.

What a command may rely on
--------------------------
- `UserError` raised anywhere ends the program with exit code 2 and exactly one line on stderr. So
  do the parser's own complaints, a file that cannot be opened and a disk that is full.
- `KeyboardInterrupt` ends it with exit code 130 and one line. A command that knows better than
  the general line what was kept raises ``KeyboardInterrupt("...")`` with its own. SIGTERM does the
  same, with exit code 143.
- A reader that closes the pipe (``| head``) ends it quietly with exit code 141.
- Any other exception is a defect and shows its traceback, with exit code 1.
- `policies`, `training` and `evaluation` are this distribution's, whatever the working directory
  holds.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code.

    Parameters
    ----------
    argv
        Arguments without the program's name; None takes those of the process.

    Returns
    -------
    int
        0 on success, 2 on bad input, 130 when interrupted, 143 when terminated, 141 when the reader
        of stdout went away.
    """
    from exactlyonce_env.cli.shell import run

    return run(argv)
