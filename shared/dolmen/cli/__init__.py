"""The ``dolmen`` command."""

import dolmen.cli.apply
import dolmen.cli.backfill
import dolmen.cli.check_store
import dolmen.cli.rejected
import dolmen.cli.requests
import dolmen.cli.simulate
import dolmen.cli.upkeep  # noqa: F401 - adds its commands
from dolmen.cli.app import main
from dolmen.cli.examples import add_examples
from dolmen.cli.options import app

add_examples(app)

__all__ = ["main"]
