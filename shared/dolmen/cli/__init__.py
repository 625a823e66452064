"""The ``dolmen`` command."""

from dolmen.cli.app import main

__all__ = ["main"]
