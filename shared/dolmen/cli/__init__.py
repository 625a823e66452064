"""The ``dolmen`` command: parses arguments, calls the package, prints tables or JSON, and sets the exit code.

It imports everything but ``dolmen.spark``; typer and rich are used nowhere else. Each module adds its commands to
``dolmen.cli.options.app`` when it is imported here.
Begin with ``dolmen.cli.app``; ``dolmen.cli.exit_codes`` maps errors to exit codes.
"""

import dolmen.cli.alter
import dolmen.cli.apply
import dolmen.cli.backfill
import dolmen.cli.changes
import dolmen.cli.check_store
import dolmen.cli.listing
import dolmen.cli.past
import dolmen.cli.programs
import dolmen.cli.rejected
import dolmen.cli.requests
import dolmen.cli.updates
import dolmen.cli.upkeep  # noqa: F401 - adds its commands
from dolmen.cli.app import main
from dolmen.cli.examples import add_examples
from dolmen.cli.options import app

add_examples(app)

__all__ = ["main"]
