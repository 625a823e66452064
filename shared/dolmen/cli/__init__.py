"""The ``dolmen`` command: parses arguments, calls the package, prints tables or JSON, and sets the exit code.

It imports everything but ``dolmen.spark``; typer and rich are used nowhere else. Each module adds its commands to
``dolmen.cli.options.app`` when ``dolmen.cli.run`` imports it to call one of them.
Begin with ``dolmen.cli.overview`` (the list of commands), ``dolmen.cli.run`` and ``dolmen.cli.table_data``;
``dolmen.cli.exit_codes`` maps errors to exit codes.
"""

import gc
import os
import sys

import dolmen
from dolmen.cli.overview import completion, help_text

__all__ = ["main"]


def main() -> None:
    """Runs the command."""
    if (answer := _early_answer()) is not None:
        sys.stdout.write(answer)
        return
    gc.disable()  # until the command is imported: each collection would go through all modules again
    from dolmen.cli.run import main as run

    run()


def _early_answer() -> str | None:
    """The output for arguments that need no command, such as ``--help``; None for others."""
    words = sys.argv[1:]
    if (script := os.environ.get("_DOLMEN_COMPLETE")) is not None:
        return completion(script)
    if words == ["--version"]:
        return f"dolmen {dolmen.__version__}\n"
    return help_text() if words in (["--help"], ["-h"]) else None
