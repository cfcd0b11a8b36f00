"""The commands, and what their ends are told by."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, TracebackType

from feeder.cli import bench, inspect, profile, verify
from feeder.cli.subject import UsageError, find
from feeder.version import VERSION

INTERRUPTED = 130
"""As a shell says it of a process that Ctrl-C has ended."""

_COMMANDS: tuple[ModuleType, ...] = (inspect, bench, verify, profile)
_LOADER = (
    "module:loader or path/to/file.py:loader, where the loader is a feeder.DataLoader, or a "
    "function without required arguments that returns one"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        argv: Its arguments; None: those of this process.

    Returns:
        An exit code: 0; 1 where the command found a fault, or user code raised; 2 where it was
        called wrongly; 130 where it was interrupted.
    """
    try:
        options = vars(_parser().parse_args(argv))
    except SystemExit as end:  # after --help, or wrong arguments, which argparse has explained
        return end.code if isinstance(end.code, int) else 2
    command = options.pop("command")
    try:
        code: int = command.run(find(options.pop("loader")), **options)
        sys.stdout.flush()
    except UsageError as error:
        print(f"feeder {_name(command)}: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # of `feeder … | head`; the interpreter's end would flush again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        error.__traceback__ = _of_user(error.__traceback__)
        traceback.print_exception(error)
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="feeder",
        description="Looks at a feeder.DataLoader: shows, measures, verifies or profiles it.",
    )
    parser.add_argument("--version", action="version", version=f"jax-feeder {VERSION}")
    commands = parser.add_subparsers(metavar="command", required=True)
    for module in _COMMANDS:
        assert module.__doc__ is not None
        summary = module.__doc__.split("\n")[0].split(": ", 1)[1]
        command = commands.add_parser(_name(module), help=summary, description=summary)
        command.add_argument("loader", help=_LOADER)
        module.add_arguments(command)
        command.set_defaults(command=module)
    return parser


def _name(command: ModuleType) -> str:
    return command.__name__.rpartition(".")[2]


def _of_user(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback below this package and the import system."""
    here, below = str(Path(__file__).parent), trace
    while below is not None:
        file = below.tb_frame.f_code.co_filename
        if not file.startswith(here) and "importlib" not in file:
            return below
        below = below.tb_next
    return trace
