"""The commit protocol: a change is data, applied to the newest version, and one compare-and-swap commits it.

docs/protocol.md is its specification.
It imports ``dolmen.entries.segments``, ``dolmen.format``, ``dolmen.store`` and the packages below them, but neither
``dolmen.rows.write`` nor ``dolmen.rows.scan``: a commit reads no rows.
Begin with ``dolmen.commit.loop``, then ``dolmen.commit.readback`` and ``dolmen.commit.change``.
"""
