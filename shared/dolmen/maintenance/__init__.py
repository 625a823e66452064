"""Background work: keeps a database fast, small and intact while it is in use.

It imports ``dolmen.transactions``, ``dolmen.commit``, ``dolmen.rows`` and what lies below those.
Begin with ``dolmen.maintenance.round``; docs/maintenance.md explains the jobs.
"""
