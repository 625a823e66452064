"""Files that must be refused, as data: each with what its error has to say. For tests of reading and of rejects."""

from __future__ import annotations

from support.malformed_case import USERS, MalformedFile
from support.malformed_compressed import MALFORMED_COMPRESSED
from support.malformed_json import MALFORMED_JSON
from support.malformed_parquet import MALFORMED_PARQUET
from support.malformed_records import MALFORMED_RECORDS
from support.malformed_text import MALFORMED_TEXT

__all__ = ["DROPPED_FILES", "MALFORMED_FILES", "USERS", "MalformedFile"]

MALFORMED_FILES = MALFORMED_TEXT + MALFORMED_JSON + MALFORMED_COMPRESSED + MALFORMED_PARQUET + MALFORMED_RECORDS

_INFERRED = {"latin1-inferred.ndjson", "latin1-header.csv", "pandas-index.csv", "column-twice.tsv"}
DROPPED_FILES = [file for file in MALFORMED_FILES if file.name not in _INFERRED]
"""Those that are refused as drops, too. The others are for tables that do not exist: their dialects are inferred."""
