"""Imports at the first use: of packages that need not be installed, and of functions that higher rooms give lower ones.

A lower room names such a function, and no module: ``dolmen/__init__.py``, which is above all rooms, says where it is.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

HIGHER_FUNCTIONS: dict[str, tuple[str, str]] = {}  # by name: its module, and what to install for it


def optional(module: str, package: str) -> Any:
    """Imports a module, or raises InputError that says which package to install."""
    try:
        return import_module(module)
    except ImportError as error:
        from dolmen.errors import InputError

        raise InputError(f"this needs {module}: pip install '{package}'") from error


def higher_function(name: str) -> Any:
    """A function of a higher room. Raises InputError that says which package to install."""
    return getattr(optional(*HIGHER_FUNCTIONS[name]), name)
