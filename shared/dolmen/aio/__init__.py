"""Calls for programs with an event loop: ``dolmen.aio.open(url)`` is ``dolmen.open(url)`` with awaited methods.

A module belongs here if it makes calls awaitable. It imports ``dolmen.api`` and what lies below.
Begin with ``dolmen.aio.calls``.
"""

from dolmen.aio.calls import AsyncObject, open

__all__ = ["AsyncObject", "open"]
