"""Reads JSON lines: one object per line, its members the table's columns.

It imports what ``dolmen.ingest.formats`` may import; ``dolmen.ingest.formats.text`` reads values in strings.
Begin with ``dolmen.ingest.formats.json.jsonl``; ``dolmen.ingest.formats.json.slow_rows`` is the slow, strict path that
names the bad line.
"""
