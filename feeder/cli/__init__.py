"""The command line, ``feeder`` and ``python -m feeder``: one module for each command.

``subject`` finds the loader that is named, ``leaves`` and ``text`` are for showing it. A command is
a function of the subject and of its options that prints what it finds, and returns an exit code.
"""

from feeder.cli.main import main

__all__ = ["main"]
