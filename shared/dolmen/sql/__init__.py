"""Statements of SQL become calls of the methods: INSERT is ``append`` or ``insert``, UPDATE is ``update``, and so on.

A module belongs here if it reads the text of a statement, or decides which call a statement is.
It imports ``dolmen.transactions`` and what lies below.
Begin with ``dolmen.sql.text``, then ``dolmen.sql.statements``.
docs/sql.md says what each statement does, and which are refused.
"""
