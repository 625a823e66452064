"""The commit protocol: a change is data, applied to whatever version is newest, and one compare-and-swap makes it true.

docs/protocol.md is its specification.
It imports ``dolmen.entries.segments``, ``dolmen.format``, ``dolmen.store`` and what lies below those, but neither
``dolmen.rows.write`` nor ``dolmen.rows.scan``: a commit knows nothing of rows.
Begin with ``dolmen.commit.loop``, then ``dolmen.commit.readback`` and ``dolmen.commit.change``.
"""
