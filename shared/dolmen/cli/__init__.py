"""The ``dolmen`` command: parses arguments, calls the package, prints tables or JSON, and sets the exit code.

It imports everything but ``dolmen.spark``; typer and rich are used nowhere else. Each module adds its commands to
``dolmen.cli.options.app`` when it is imported: ``dolmen.cli.commands`` does that when one of them is called.
Begin with ``dolmen.cli.commands`` and ``dolmen.cli.app``; ``dolmen.cli.exit_codes`` maps errors to exit codes.
"""

import gc

from dolmen.cli.commands import main

gc.freeze()  # what is imported stays: Python's collector need not look at it while a command runs, nor when it ends

__all__ = ["main"]
