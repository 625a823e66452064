"""``dolmen simulate``: handed to the simulator, which is a distribution of its own."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import typer

from dolmen.cli.options import app
from dolmen.errors import InputError

_PASSED_ON = {"ignore_unknown_options": True, "allow_extra_args": True}


@app.command(context_settings=_PASSED_ON, add_help_option=False)
def simulate(context: typer.Context) -> None:
    """Run databases in a simulated world of faults, and check what must never happen. Needs dolmen-simulator."""
    if find_spec("dolmen_simulator") is None:
        raise InputError("dolmen simulate needs the simulator: pip install dolmen-simulator")
    raise typer.Exit(import_module("dolmen_simulator.command").run(context.args))
