"""The pointer: the one mutable object of a database, replaced only by compare-and-swap on its ETag."""

from __future__ import annotations

import msgspec

from dolmen.errors import CorruptionError, UnsupportedFormatError
from dolmen.format.checksum import seal, unseal
from dolmen.format.decoding import prepare
from dolmen.format.layout import parse_manifest_key

FORMAT_VERSION = 1


class Turn(msgspec.Struct, frozen=True):
    """Asks all writers but one to wait for the next version (``dolmen.commit.turns``).

    Args:
        id: 32 hexadecimal digits, random, by which the writer whose turn it is knows it.
        ms: how long the others wait at most, in milliseconds after they have read it.
    """

    id: str
    ms: int


class Pointer(msgspec.Struct, frozen=True):
    """Names the newest manifest. Holds version and commit id, or a turn's, so no two pointers are ever equal (no ABA).

    Args:
        turn: who commits next; left out if nobody asked for it.
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
