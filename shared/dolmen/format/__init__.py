"""The on-disk format: turns bytes into types and types into bytes. docs/format.md is its specification.

It does no I/O.
It imports only ``dolmen.base`` and ``dolmen.errors``; it does not know ``dolmen.store``.
Begin with ``dolmen.format.layout`` and ``dolmen.format.manifest``, then ``dolmen.format.entries``.
"""
