"""Checks of public arguments, so that no value of a wrong type or size reaches a manifest."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from operator import index

from dolmen.errors import InputError, short_repr

MAX_REQUEST_BYTES = 4096  # the longest request id in UTF-8: enough for the URL of any S3 object with its version
MAX_OPERATION_LENGTH = 64

MAX_MESSAGE_BYTES = 256  # the longest message of a commit in UTF-8. Each manifest has up to 64 messages.
MAX_METADATA_BYTES = 8_192
"""The most bytes of a commit's metadata, keys and values together: each manifest repeats that of 16 commits."""


def request_id(value: object) -> str:
    """Returns ``value`` if it can be a request id: text of 1 to 4,096 bytes. Raises InputError."""
    if not isinstance(value, str):
        hint = ": give request=str(...)" if type(value).__name__ == "UUID" else ""
        raise InputError(f"request={short_repr(value)} is of type {type(value).__name__}, and an id is text{hint}")
    size = len(text("request", value).encode())
    if not 0 < size <= MAX_REQUEST_BYTES:
        raise InputError(f"request: {size:,} bytes; an id has 1 to {MAX_REQUEST_BYTES:,}")
    return str.__str__(value)


def operation(value: object) -> str:
    """Returns ``value`` if it can name an operation in ``history``: 1 to 64 printable characters. Raises InputError."""
    name = text("operation", value)
    if not 0 < len(name) <= MAX_OPERATION_LENGTH or not name.isprintable():
        raise InputError(
            f"operation {short_repr(name)}: history() takes names of 1 to {MAX_OPERATION_LENGTH} printable characters"
        )
    return name


def message(value: object) -> str:
    """Returns ``value`` if it can be a commit's message: text of at most 256 bytes. Raises InputError."""
    checked = text("message", value)
    if (size := len(checked.encode())) > MAX_MESSAGE_BYTES:
        raise InputError(f"message: {size:,} bytes; a message has at most {MAX_MESSAGE_BYTES}")
    return checked


MAX_OWN_ENTRIES, MAX_OWN_CHARACTERS = 100, 1_000
"""The most entries of a commit's metadata or of a table's ``user.*`` properties, and the most characters of one."""


def metadata(value: object) -> dict[str, str]:
    """Returns a copy of ``value`` if it can be a commit's metadata: text by key. Raises InputError."""
    if not isinstance(value, Mapping):
        raise InputError(
            f"metadata={short_repr(value)} is of type {type(value).__name__}, not a mapping of keys to text"
        )
    if len(value) > MAX_OWN_ENTRIES:
        raise InputError(f"metadata: {len(value):,} entries; a commit has at most {MAX_OWN_ENTRIES}")
    for key in value:
        if not isinstance(key, str) or not re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", key, re.ASCII):
            raise InputError(f"metadata: key {short_repr(key)}: a key has 1 to 100 characters of A-Z, a-z, 0-9 and _.-")
    checked = {text("key", key): own_text(f"metadata {key}", each) for key, each in value.items()}
    if (size := metadata_bytes(checked)) > MAX_METADATA_BYTES:
        raise InputError(f"metadata: {size:,} bytes; that of a commit has at most {MAX_METADATA_BYTES:,}")
    return checked


def metadata_bytes(metadata: Mapping[str, str]) -> int:
    """The size of keys and values in UTF-8."""
    return sum(len(key) + len(value.encode()) for key, value in metadata.items())


def own_text(name: str, value: object) -> str:
    """Returns ``value`` if it can be users' own text: at most 1,000 characters. Raises InputError."""
    if len(checked := text(name, value)) > MAX_OWN_CHARACTERS:
        raise InputError(f"{name} has {len(checked):,} characters: at most {MAX_OWN_CHARACTERS:,} are allowed")
    return checked


def text(name: str, value: object) -> str:
    """Returns ``value`` if it is text that UTF-8 can encode. Raises InputError. ``name``: the argument's name."""
    if not isinstance(value, str):
        raise InputError(f"{name}={short_repr(value)} is of type {type(value).__name__}, not text")
    value = str.__str__(value)  # a subclass may return another text
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{name}={short_repr(value)}: half of a surrogate pair at character {error.start}, which is not text"
        ) from None
    return value


def flag(name: str, value: object) -> bool:
    """Returns ``value`` if it is True or False. Raises InputError."""
    if not isinstance(value, bool):
        raise InputError(f"{name}={short_repr(value)} is neither True nor False")
    return value


def number(name: str, value: object, least: int = -(2**63), most: int = 2**63 - 1) -> int:
    """Returns ``value`` if it is a whole number within bounds, of Python or of NumPy. Raises InputError."""
    try:
        integer = None if isinstance(value, bool) else index(value)  # type: ignore[arg-type]  # raises TypeError
    except TypeError:
        integer = None
    if integer is None:
        raise InputError(f"{name}={short_repr(value)} is not a whole number")
    if not least <= integer <= most:
        raise InputError(f"{name}={short_repr(integer)} is out of bounds: {least:,} to {most:,}")
    return integer


def names(name: str, value: object) -> list[str]:
    """Returns one name or several as a list. Raises InputError."""
    if isinstance(value, str):
        return [text(name, value)]
    try:
        each = None if isinstance(value, (bytes, bytearray, memoryview)) else iter(value)  # type: ignore[call-overload]
    except TypeError:  # also raised for a NumPy array without dimensions
        each = None
    if each is None:
        raise InputError(f"{name}={short_repr(value)} is neither a name nor a list of names")
    return [text(name, one) for one in each]


def one_of(name: str, value: object, choices: Sequence[str]) -> str:
    """Returns ``value`` if it is one of the choices. Raises InputError."""
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"{name}={short_repr(value)} is not {' or '.join(map(repr, choices))}")
    return value
