"""The pointer: the one mutable object of a database, replaced only by compare-and-swap on its ETag.

Tags and cursors: names that a database gives to versions.
"""

from __future__ import annotations

import re

import msgspec

from dolmen.base import arguments
from dolmen.errors import CorruptionError, InvalidNameError, UnsupportedFormatError
from dolmen.format.checksums import prepare, seal, unseal
from dolmen.format.layout import parse_manifest_key

FORMAT_VERSION = 1


class Turn(msgspec.Struct, frozen=True):
    """Asks all writers but one to wait for the next version (``dolmen.commit.head``).

    Args:
        id: 32 hexadecimal digits, random, by which the writer whose turn it is knows it.
        ms: how long the others wait at most, in milliseconds after they have read it.
    """

    id: str
    ms: int


class Pointer(msgspec.Struct, frozen=True):
    """Names the newest manifest. Holds version and commit id, or a turn's, so no two pointers are ever equal (no ABA).

    Args:
        turn: who commits next; left out if no writer asked for one.
    """

    version: int
    manifest: str
    commit_id: str
    format_version: int = FORMAT_VERSION
    turn: Turn | msgspec.UnsetType = msgspec.UNSET

    def encode(self) -> bytes:
        """The object's bytes: sealed JSON."""
        return seal(msgspec.json.encode(self))

    @classmethod
    def decode(cls, body: bytes, key: str) -> Pointer:
        """Reads a pointer.

        Raises:
            UnsupportedFormatError: written by a newer dolmen.
            CorruptionError: it is damaged.
        """
        document = unseal(body, key)
        check_format_version(document, key)
        try:
            pointer = msgspec.json.decode(document, type=cls)
        except msgspec.DecodeError as error:
            raise CorruptionError(key, f"not a pointer: {error}") from error
        parsed = parse_manifest_key(pointer.manifest)
        if parsed is None or parsed[0] != pointer.version:
            raise CorruptionError(key, f"version {pointer.version} with manifest {pointer.manifest!r}")
        return pointer


class _Versioned(msgspec.Struct):
    format_version: int
    features: tuple[str, ...] = ()


def check_format_version(document: bytes, key: str, features: frozenset[str] = frozenset()) -> None:
    """Refuses what this code could misread: a newer format, or a feature it does not know.

    Raises:
        UnsupportedFormatError: names what is needed.
        CorruptionError: the document states no format version.
    """
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


prepare(Pointer, Turn, _Versioned)


RESERVED_TAGS = "iceberg."
"""Names of tags that begin with this are of versions that are published (``dolmen.iceberg.publication_directory``)."""


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


class Tag(msgspec.Struct, frozen=True, omit_defaults=True):
    """A name for one version, which is kept with all that it needs.

    Args:
        version: the number of the version.
        manifest: key of its manifest, because histories forget expired versions.
        created_at: that of the version.
        until: time from which collection may remove the tag, in microseconds; 0 = never.
    """

    version: int
    manifest: str
    created_at: int
    until: int = 0


class Cursor(msgspec.Struct, frozen=True):
    """The place of a reader of changes: no version from this one on expires while the cursor lasts.

    Args:
        version: the newest version that its reader has seen.
        moved_at: when the cursor was made, or last moved, by the server's clock.
        age_us: the cursor ends when it has not moved for so long. Then versions expire, and it stays where it is.
    """

    version: int
    moved_at: int
    age_us: int

    def holds(self, now_us: int) -> bool:
        """Whether versions may not expire at this time, because its reader may still come."""
        return now_us <= self.moved_at + self.age_us


def check_tag_name(name: str, what: str = "tag") -> str:
    """Returns ``name`` if a tag, or a cursor, may be called so. Raises InvalidNameError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidNameError(
            f"{what} {arguments.short_repr(name)} is not 1 to 64 of A-Z, a-z, 0-9, _, . and -, with no . or - first"
        )
    return name
