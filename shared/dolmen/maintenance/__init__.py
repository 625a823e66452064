"""Background work: keeps a database fast, small and intact while others go on using it.

One round expires, resolves, compacts and merges; collection deletes objects, verification checks them.
It imports ``dolmen.commit.context``, ``dolmen.transactions.transaction``, ``dolmen.commit``, ``dolmen.rows.scan``,
``dolmen.rows.write`` and what lies below those, but not ``dolmen.api.database``.
Begin with ``dolmen.maintenance.round``; docs/maintenance.md explains the jobs.
"""
