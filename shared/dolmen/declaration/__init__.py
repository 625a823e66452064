"""Declares tables in a file: ``plan`` says what that would change, ``apply`` makes the database match.

It imports ``dolmen.api.database`` and what lies below that, but not ``dolmen.ingest``.
Begin with ``dolmen.declaration.plan``; ``dolmen.declaration.reading`` checks the file. docs/tables.md shows one.
"""

from dolmen.declaration.alterations import DeclaredChange
from dolmen.declaration.plan import DeclarationPlan, apply, plan
from dolmen.declaration.reading import Declaration, DeclaredColumn, DeclaredTable

__all__ = ["Declaration", "DeclarationPlan", "DeclaredChange", "DeclaredColumn", "DeclaredTable", "apply", "plan"]
