"""The command line ``rsm-fast``: a thin face over `rsm_fast.Memory`."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import TextIO

from rsm_fast.cli.arguments import parser
from rsm_fast.cli.output import remark
from rsm_fast.errors import RSMError

__all__ = ["main"]

_ERROR, _USAGE, _INTERRUPTED, _PIPE_CLOSED = 1, 2, 130, 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    arguments : sequence of str, optional
        Words behind the program's name. Default: those of the process.

    Returns
    -------
    int
        Exit code: 0 done, 1 error, 2 wrong usage, 3 part of the input was left out, 130
        interrupted, 141 the reader of standard output went away.
    """
    grammar = parser()
    chosen = grammar.parse_args(arguments)
    if chosen.command is None:
        grammar.print_help(sys.stderr)
        return _USAGE
    for stream in (sys.stdout, sys.stderr):
        _print_any_character(stream)
    from rsm_fast.cli.commands import COMMANDS

    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            code = COMMANDS[chosen.command](chosen)
            sys.stdout.flush()
            return code
        except BrokenPipeError:
            # Python flushes standard output once more at exit: let that go nowhere.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return _PIPE_CLOSED
        except BaseException as error:
            if _was_interrupted(error):
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # leave in peace if pressed again
                remark("rsm-fast: interrupted; what was stored is whole, run the command again")
                return _INTERRUPTED
            if isinstance(error, RSMError):
                remark(f"rsm-fast: error: {error}")
            elif isinstance(error, OSError):
                where = f"{error.filename}: " if error.filename is not None else ""
                remark(f"rsm-fast: error: {where}{error.strerror or error}")
            else:
                raise
            return _ERROR


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C began it: an import that it cut short can fail once more while closing."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _print_any_character(stream: TextIO) -> None:
    """Escape what the terminal's encoding lacks (and lone surrogates) instead of failing."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    remark(f"rsm-fast: warning: {message}")
