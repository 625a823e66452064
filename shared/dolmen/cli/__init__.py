"""The ``dolmen`` command: parses arguments, calls the package, prints tables or JSON, and sets the exit code.

It imports everything but ``dolmen.spark``; typer and rich are used nowhere else. Each module adds its commands to
``dolmen.cli.options.app`` when ``dolmen.cli.commands`` imports it to call one of them.
Begin with ``dolmen.cli.commands`` and ``dolmen.cli.app``; ``dolmen.cli.exit_codes`` maps errors to exit codes.
"""

import gc

from dolmen.cli.commands import main

gc.freeze()  # the collector can ignore what is imported, while a command runs and when it ends

__all__ = ["main"]
