"""The on-disk format: turns bytes into types and types into bytes. docs/format.md is its specification.

It holds manifests, the pointer, entries, schemas, keys, segments and table properties. It does no I/O.
It imports only ``dolmen.base.arguments``, ``dolmen.errors`` and ``dolmen.base.units``; it does not know
``dolmen.store``.
Begin with ``dolmen.format.manifest``, then ``dolmen.format.entries`` and ``dolmen.format.layout``.
"""
