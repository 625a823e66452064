"""Statements: the steps of a change, as data. Each can be applied to any base version, again and again."""
