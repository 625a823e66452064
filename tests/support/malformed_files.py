"""Files that must be refused, as data: each with what its error has to say. For tests of reading and of rejects."""

from __future__ import annotations

from support.malformed_case import USERS, MalformedFile
from support.malformed_compressed import MALFORMED_COMPRESSED
from support.malformed_json import MALFORMED_JSON
from support.malformed_parquet import MALFORMED_PARQUET
from support.malformed_records import MALFORMED_RECORDS
from support.malformed_text import MALFORMED_TEXT

__all__ = ["MALFORMED_FILES", "USERS", "MalformedFile"]

MALFORMED_FILES = MALFORMED_TEXT + MALFORMED_JSON + MALFORMED_COMPRESSED + MALFORMED_PARQUET + MALFORMED_RECORDS
