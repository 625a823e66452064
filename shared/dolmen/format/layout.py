"""Names and frames of a database's objects: keys, paths of adopted files, seals of JSON, the pointer, tags and cursors.

docs/format.md specifies all of them. No key is ever reused.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal, TypeVar
from urllib.parse import quote, unquote
from zlib import crc32

import msgspec
from msgspec import Struct

from dolmen.errors import CorruptionError, InvalidNameError, UnsupportedFormatError, short_repr

T = TypeVar("T")

CLOCK_STEP_US = 1_000_000
"""Servers tell the time in whole seconds: a file with a time up to this long after a request may be older."""
FORMAT_VERSION = 1
POINTER = "_latest_manifest"

SEGMENTS = "segment/"  # the beginning of all keys of segments
RESERVED_TAGS = "iceberg."  # the beginning of tags of published versions (``dolmen.iceberg.publication_directory``)
_TABLE_NAME = re.compile(r"[a-z0-9_]{1,64}")
_TAG_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_MANIFEST = re.compile(r"manifest/v(\d{20})-([0-9a-f]{8})\.json")
_OBJECT = re.compile(r"(data|tombstone|segment|index|intent)/[A-Za-z0-9_./-]{1,200}")


def check_table_name(name: str) -> str:
    """Returns ``name`` if a table may have it. Raises InvalidNameError."""
    if not isinstance(name, str) or not _TABLE_NAME.fullmatch(name):
        raise InvalidNameError(f"table name {short_repr(name)} is not 1 to 64 of a-z, 0-9 and _")
    return name


def check_tag_name(name: str, what: str = "tag") -> str:
    """Returns ``name`` if a tag, or a cursor, may have it. Raises InvalidNameError."""
    if not isinstance(name, str) or not _TAG_NAME.fullmatch(name):
        raise InvalidNameError(
            f"{what} {short_repr(name)} is not 1 to 64 of A-Z, a-z, 0-9, _, . and -, with no . or - first"
        )
    return name


def memory_name(table: str) -> str:
    """The name of the table that remembers which keys changes (CDC) have deleted from ``table``."""
    return f"{table}__deleted"


def check_reference(path: str, holder: str) -> str:
    """Returns ``path`` if it can be an object of a database. Raises CorruptionError for ``holder``, which names it."""
    if is_adopted(path):
        is_valid = AdoptedPath.parse(path) is not None
    else:
        is_valid = _OBJECT.fullmatch(path) is not None and ".." not in path
    if not is_valid:
        raise CorruptionError(holder, f"it refers to {path!r}, which is not an object of a database")
    return path


def manifest_key(version: int, attempt: str) -> str:
    """``manifest/v<20 digits>-<attempt8>.json``: one per commit attempt."""
    return f"manifest/v{version:020d}-{attempt}.json"


def parse_manifest_key(key: str) -> tuple[int, str] | None:
    """(version, attempt) of a manifest's key; None for other keys."""
    match = _MANIFEST.fullmatch(key)
    return (int(match[1]), match[2]) if match else None


def check_manifest_key(key: str, version: int, holder: str) -> str:
    """Returns ``key`` if it is of a manifest of this version; guards as ``check_reference`` does."""
    parsed = parse_manifest_key(key)
    if parsed is None or parsed[0] != version:
        raise CorruptionError(holder, f"it refers to {key!r}, which is not a manifest of version {version}")
    return key


def data_key(table: str, now_us: int, uuid: str) -> str:
    """``data/<table>/YYYY/MM/DD/HH/<uuid>.parquet``."""
    return f"data/{table}/{_hour(now_us)}/{uuid}.parquet"


def tombstone_key(table: str, now_us: int, uuid: str) -> str:
    """``tombstone/<table>/YYYY/MM/DD/HH/<uuid>.del``."""
    return f"tombstone/{table}/{_hour(now_us)}/{uuid}.del"


def segment_key(kind: str, uuid: str) -> str:
    """``segment/<kind>/<uuid>``."""
    return f"{SEGMENTS}{kind}/{uuid}"


def uuid_of(path: str) -> str:
    """A data file's own name, unique in the world, by which overlays and Spark know it."""
    return path.rpartition("/")[2].removesuffix(".parquet")


def _hour(now_us: int) -> str:
    return datetime.fromtimestamp(now_us // 1_000_000, UTC).strftime("%Y/%m/%d/%H")


ADOPTED_PREFIX = "adopted/"

OWN_SCHEME = "own"  # the scheme of adopted files in the database's own directory or prefix
_UNQUOTED = "=/"  # with the characters that ``quote`` always keeps: letters, digits, and _ . - ~
_ADOPTED_NAME = re.compile(r"[0-9a-f]{32}\.parquet")
_QUOTED_KEY = re.compile(r"[A-Za-z0-9_.~=/%-]+")
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_.~=/-]+")  # without a character to quote
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{2,254}")  # the names that ``Scheme.is_bucket`` of the store allows
_WITH_ROOT = ("s3", "memory")
_LONGEST_PATH = 3_500
ColumnsBy = Literal["ids", "names"]


class AdoptedPath(Struct, frozen=True):
    """The parts of the path of an adopted file: a Parquet file of others, which dolmen never changes or deletes."""

    columns_by: ColumnsBy  # whether its columns are found by their field ids or by their names
    scheme: str  # ``own``, ``file``, ``s3`` or ``memory``
    root: str  # the bucket, or the name of a store in memory; "" for the others
    key: str  # the file's key there
    uuid: str  # the file's own name in the table

    @staticmethod
    @lru_cache(maxsize=16_384)
    def parse(path: str) -> AdoptedPath | None:
        """Reads a path. Returns None if it is not that of an adopted file, or could be written in another way."""
        head, _, name = path.rpartition("/")
        parts = head.split("/", 3)
        if len(path) > _LONGEST_PATH or len(parts) < 4 or not is_adopted(path) or not _ADOPTED_NAME.fullmatch(name):
            return None
        _, columns_by, scheme, key = parts
        root, _, key = key.partition("/") if scheme in _WITH_ROOT else ("", "", key)
        if columns_by not in ("ids", "names") or scheme not in (OWN_SCHEME, "file", *_WITH_ROOT):
            return None
        if not _QUOTED_KEY.fullmatch(key) or (scheme == "s3" and not _BUCKET.fullmatch(root)):
            return None
        if scheme == "memory" and not _QUOTED_KEY.fullmatch(root):
            return None
        if is_quoted := "%" in path or bool(root):
            try:
                root, key = (unquote(each, errors="strict") for each in (root, key))
            except UnicodeDecodeError:
                return None
        parsed = AdoptedPath("ids" if columns_by == "ids" else "names", scheme, root, key, name[:32])
        return None if key_problem(key) or (is_quoted and parsed.encode() != path) else parsed

    def encode(self) -> str:
        root = f"{self.scheme}/{quote(self.root, safe='')}" if self.scheme in _WITH_ROOT else self.scheme
        key = self.key if _PLAIN_KEY.fullmatch(self.key) else quote(self.key, safe=_UNQUOTED)
        return f"{ADOPTED_PREFIX}{self.columns_by}/{root}/{key}/{self.uuid}.parquet"

    @property
    def label(self) -> str:
        return self.key if self.scheme == OWN_SCHEME else f"{self.scheme}://{self.root}/{self.key}"


def is_adopted(path: str) -> bool:
    return path.startswith(ADOPTED_PREFIX)


def file_label(path: str) -> str:
    """A data file as messages name it: an adopted one by its URL, or its key in the database, any other by its path."""
    adopted = AdoptedPath.parse(path)
    return adopted.label if adopted else path


def key_problem(key: str) -> str:
    """Why a file of this key cannot be adopted; "" if it can."""
    if {"", ".", ".."} & set(key.split("/")):
        return "a part of its name between '/' is empty, '.' or '..'"
    if "\\" in key or "\0" in key:
        return "its name has a backslash or a NUL"
    if len(key.encode("utf-8", "surrogatepass")) > 1024:
        return "its name is longer than 1,024 bytes"
    return ""


_SEAL = b',"crc32":'
_MOST_DIGITS = 10


def seal(document: bytes) -> bytes:
    """Adds the checksum to a compact, non-empty JSON object."""
    return b"%s%s%d}" % (document[:-1], _SEAL, crc32(document))


def unseal(sealed: bytes, key: str) -> bytes:
    """The document inside a sealed JSON object. Raises CorruptionError: no checksum, or one that differs."""
    head, seal_member, tail = sealed.rpartition(_SEAL)
    digits = tail[:-1]
    if not seal_member or tail[-1:] != b"}" or not digits.isdigit() or len(digits) > _MOST_DIGITS:
        raise CorruptionError(key, "no checksum at its end (truncated?)")
    document = head + b"}"
    if crc32(document) != int(digits):
        raise CorruptionError(key, "checksum differs")
    return document


class _Versioned(msgspec.Struct):
    format_version: int
    features: tuple[str, ...] = ()


def check_format_version(document: bytes, key: str, features: frozenset[str] = frozenset()) -> None:
    """Raises UnsupportedFormatError for a newer format or feature, and CorruptionError without a format version."""
    try:
        stated = msgspec.json.decode(document, type=_Versioned)
    except msgspec.DecodeError as error:
        raise CorruptionError(key, f"no format version: {error}") from error
    if stated.format_version > FORMAT_VERSION:
        raise UnsupportedFormatError(
            f"{key} has format version {stated.format_version}, this dolmen reads up to {FORMAT_VERSION}: upgrade it"
        )
    if unknown := sorted(set(stated.features) - features):
        raise UnsupportedFormatError(f"{key} needs {', '.join(unknown)}, which this dolmen does not know: upgrade it")


def decode_sealed(body: bytes, key: str, kind: type[T], problem: str, features: frozenset[str] = frozenset()) -> T:
    """The value in a sealed JSON object.

    ``problem``: what the error says of a document that is not of this kind. Raises UnsupportedFormatError: a newer
    dolmen wrote it; CorruptionError: it is damaged.
    """
    document = unseal(body, key)
    check_format_version(document, key, features)
    try:
        return msgspec.json.decode(document, type=kind)
    except msgspec.DecodeError as error:
        raise CorruptionError(key, f"{problem}: {error}") from error


def build_decoders(*types: Any) -> None:
    """Builds msgspec's decoders of these types while their module is imported, when only one thread runs.

    Otherwise, two threads that read a type for the first time may crash the process (msgspec 0.22).
    """
    for each in types:
        msgspec.json.Decoder(each)


class Turn(msgspec.Struct, frozen=True):
    """Asks all writers but one to wait for the next version (``dolmen.commit.loop``)."""

    id: str  # 32 random hexadecimal digits, by which the writer recognizes its own turn
    ms: int  # how long the others wait at most, in milliseconds after they have read it


class Pointer(msgspec.Struct, frozen=True):
    """Names the newest manifest: the one mutable object of a database, replaced only by compare-and-swap on its ETag.

    It has the commit id of its version, and the id of a turn if there is one, so no two pointers are ever equal (no
    ABA). ``turn`` says which writer commits next; it is left out if no writer has asked for that.
    """

    version: int
    manifest: str
    commit_id: str
    format_version: int = FORMAT_VERSION
    turn: Turn | msgspec.UnsetType = msgspec.UNSET

    def encode(self) -> bytes:
        return seal(msgspec.json.encode(self))

    @classmethod
    def decode(cls, body: bytes, key: str) -> Pointer:
        """Reads a pointer. Raises as ``decode_sealed`` does."""
        pointer = decode_sealed(body, key, cls, "not a pointer")
        check_manifest_key(pointer.manifest, pointer.version, key)
        return pointer


class Tag(msgspec.Struct, frozen=True, omit_defaults=True):
    """A name for one version, which keeps that version and all that it needs."""

    version: int
    # manifest, created_at: of the version, because histories forget expired versions
    manifest: str
    created_at: int
    until: int = 0  # time from which collection may remove the tag, in microseconds; 0 = never


class Cursor(msgspec.Struct, frozen=True):
    """The position of a reader of changes: no version from this one on expires while the cursor lasts."""

    version: int  # the newest version that its reader has seen
    moved_at: int  # when the cursor was made, or last moved, by the server's clock
    age_us: int  # the cursor ends when it has not moved for this long. Then versions expire, and it stays where it is.

    def holds(self, now_us: int) -> bool:
        """Whether the cursor keeps versions at this time, because its reader may still come back."""
        return now_us <= self.moved_at + self.age_us


build_decoders(Pointer, _Versioned)
