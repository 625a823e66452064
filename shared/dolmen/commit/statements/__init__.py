"""Statements: the steps of a change, as data. Each can be applied to any base version, again and again.

A statement checks what it requires of its base, and raises ``ConflictError`` if the base contradicts it.
It imports what ``dolmen.commit`` may import.
Begin with ``dolmen.commit.statements.row_changes``; ``dolmen.commit.draft.Statement`` is their protocol.
"""
