"""The store in a directory: files, locks and atomic renames.

It is safe among processes of one machine, and not over NFS.
It imports ``dolmen.store`` and what lies below that. Begin with ``dolmen.store.local.store``.
"""
