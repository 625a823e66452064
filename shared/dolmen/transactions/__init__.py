"""Statements of users over one snapshot: what a transaction adds, and what one version shows.

A module belongs here if it adds a statement, or reads one version. It imports ``dolmen.rows``, ``dolmen.commit``
and what lies below.
Begin with ``dolmen.transactions.transaction``, then ``dolmen.transactions.unit_of_work`` and
``dolmen.transactions.snapshot``.
"""
