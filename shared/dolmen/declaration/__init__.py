"""Declares tables in a file: ``plan`` says what that would change, ``apply`` makes the database match.

It imports ``dolmen.api.database`` and what lies below that, but not ``dolmen.ingest``.
Begin with ``dolmen.declaration.declaration_plan``; ``dolmen.declaration.declaration_file`` checks the file.
docs/tables.md shows one.
"""

from dolmen.declaration.declaration_file import Declaration, DeclaredColumn, DeclaredTable
from dolmen.declaration.declaration_plan import DeclarationPlan, DeclaredChange, apply, plan

__all__ = ["Declaration", "DeclarationPlan", "DeclaredChange", "DeclaredColumn", "DeclaredTable", "apply", "plan"]
