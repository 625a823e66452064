"""Values in text: what CSV cells and JSON strings may say, and how values are written as text.

It imports what ``dolmen.ingest.formats`` may import, but no reader of a file format.
Begin with ``dolmen.ingest.formats.text.cells``, then ``dolmen.ingest.formats.text.times``.
"""
