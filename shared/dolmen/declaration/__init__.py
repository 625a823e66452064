"""Declares tables in a file: ``plan`` shows what would change, and ``apply`` makes the database match.

It imports ``dolmen.api.database`` and the packages below it, but not ``dolmen.ingest``.
Begin with ``dolmen.declaration.declaration_plan``; ``dolmen.declaration.declaration_file`` checks the file.
docs/tables.md has an example.
"""

from dolmen.declaration.declaration_file import Declaration, DeclaredColumn, DeclaredTable
from dolmen.declaration.declaration_plan import DeclarationPlan, DeclaredChange, apply, plan

__all__ = ["Declaration", "DeclarationPlan", "DeclaredChange", "DeclaredColumn", "DeclaredTable", "apply", "plan"]
