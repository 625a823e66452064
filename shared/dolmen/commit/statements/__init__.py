"""Statements: the steps of a change, as data. Each can be applied to any base version, again and again.

A statement says what it requires of its base, and raises ``ConflictError`` where the base contradicts it.
It imports what ``dolmen.commit`` may import.
Begin with ``dolmen.commit.statements.statement``, then ``dolmen.commit.statements.row_changes``.
"""
