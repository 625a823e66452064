"""The ``dolmen`` command: parses arguments, calls the package, prints tables or JSON, and sets the exit code.

It imports everything but ``dolmen.spark``; typer and rich are used nowhere else. Each module adds its commands to
``dolmen.cli.options.app`` when ``dolmen.cli.commands`` imports it to call one of them.
Begin with ``dolmen.cli.overview`` (the list of commands), ``dolmen.cli.commands`` and ``dolmen.cli.app``;
``dolmen.cli.exit_codes`` maps errors to exit codes.
"""

import gc
import sys

from dolmen.cli.overview import early_answer

__all__ = ["main"]


def main() -> None:
    """Runs the command."""
    if (answer := early_answer()) is not None:
        sys.stdout.write(answer)
        return
    gc.disable()  # until the command is imported: it would go through all modules again and again
    from dolmen.cli.commands import main as run

    run()
