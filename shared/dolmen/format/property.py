"""One property: its name, its default and how a value is read; and the kinds of values there are. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dolmen.base import arguments
from dolmen.base.units import parse_size
from dolmen.errors import InputError


@dataclass(frozen=True)
class Property:
    """One setting.

    Args:
        default: what holds while it is not set; None = nothing does.
        parse: reads a value. Raises InputError, which says what is allowed.
        help: one line for people.
        also: what a value may be beside text and a whole number: ``bool`` or ``list``.
        refuse: raises InputError for a value, as ``parse`` returns it, that only older settings may have.
        attribute: the name of its value in a class of settings, where it differs from ``name``.
    """

    name: str
    default: str | int | None
    parse: Callable[[Any], Any]
    help: str
    also: type | None = None
    refuse: Callable[[Any], object] | None = None
    attribute: str = ""


def sized(least: int, most: int) -> Callable[[Any], int]:
    """Reads a size between these bounds, in bytes."""

    def parse(value: Any) -> int:
        size = parse_size(value)
        if not least <= size <= most:
            raise InputError(f"{arguments.short_repr(value)} is out of bounds: from {least:,} to {most:,} bytes")
        return size

    return parse


def count(value: Any) -> int:
    """Reads a number from 1 to 999,999,999."""
    text = str(value).strip()
    if not re.fullmatch(r"[1-9]\d{0,8}", text, re.ASCII):
        raise InputError(f"{arguments.short_repr(value)} is no number from 1 to 999,999,999")
    return int(text)


def one_of(*words: str) -> Callable[[Any], str]:
    """Reads one of these words."""

    def parse(value: Any) -> str:
        if value not in words:
            raise InputError(f"{arguments.short_repr(value)} is none of {', '.join(words)}")
        return str(value)

    return parse


def truth(value: Any) -> bool:
    """Reads ``true`` or ``false``."""
    if value in (True, "true"):
        return True
    if value in (False, "false"):
        return False
    raise InputError(f"{arguments.short_repr(value)} is neither true nor false")


def words(value: Any) -> tuple[str, ...]:
    """Reads a list of texts, or one text with commas between them."""
    listed = value.split(",") if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(word, str) for word in listed):
        raise InputError(f"{arguments.short_repr(value)} is no list of texts")
    return tuple(listed)


def name(value: Any) -> str:
    """Reads a name: any text that is not blank."""
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{arguments.short_repr(value)} is no name")
    return value.strip()


def check_properties(changes: Mapping[str, Any], known: Mapping[str, Property], owner: str) -> dict[str, Any]:
    """Returns ``changes`` if each is a known property and a value of it; None as a value unsets. Raises InputError."""
    for changed, value in changes.items():
        if changed not in known:
            raise InputError(f"{owner} has no property {arguments.short_repr(changed)}; there are: {', '.join(known)}")
        if value is not None:
            _read(known[changed], value, anew=True)
    return dict(changes)


def value_of(known: Property, properties: Mapping[str, Any]) -> Any:
    """The parsed value of a property, or its default where it is not set. Raises InputError."""
    value = properties.get(known.name, known.default)
    return None if value is None else _read(known, value)


def read_settings(known: Mapping[str, Property], properties: Mapping[str, Any]) -> dict[str, Any]:
    """The parsed values of all properties, by the name of their attribute in a class of settings. Raises InputError."""
    return {each.attribute or each.name: value_of(each, properties) for each in known.values()}


def _read(known: Property, value: Any, *, anew: bool = False) -> Any:
    try:
        if type(value) not in (str, int, known.also):
            raise InputError(f"{arguments.short_repr(value)} is neither text nor a whole number")
        if isinstance(value, str):
            arguments.text("value", value)
        elif type(value) is int:
            arguments.number("value", value)
        found = known.parse(value)
        if anew and known.refuse:
            known.refuse(found)
        return found
    except InputError as error:
        raise InputError(f"property {known.name}: {error}") from None
