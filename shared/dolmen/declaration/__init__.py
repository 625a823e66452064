"""Declares tables in a file: ``plan`` says what that would change, ``apply`` makes the database match.

It imports ``dolmen.database`` and what lies below that, but not ``dolmen.ingest``.
Begin with ``dolmen.declaration.plan``; ``dolmen.declaration.reading`` checks the file. docs/tables.md shows one.
"""

from dolmen.declaration.plan import Change, Plan, apply, plan
from dolmen.declaration.reading import Declaration, DeclaredTable

__all__ = ["Change", "Declaration", "DeclaredTable", "Plan", "apply", "plan"]
