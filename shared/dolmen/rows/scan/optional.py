"""Packages that only some results need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from dolmen.errors import InputError


def optional(module: str, package: str) -> Any:
    """Imports a module, or raises InputError that says which package to install."""
    try:
        return import_module(module)
    except ImportError as error:
        raise InputError(f"this needs {module}: pip install '{package}'") from error
