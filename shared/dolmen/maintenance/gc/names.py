"""Reads names of objects: the table, and the hour in which the name was made."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

from dolmen.base.units import HOUR_US, SECOND_US
from dolmen.format.layout import data_key, tombstone_key
from dolmen.store.base import ObjectStore

_DATED = re.compile(r"(?:data|tombstone)/[a-z0-9_]{1,64}/(\d{4})/(\d\d)/(\d\d)/(\d\d)/[^/]+")
_AFTER_DATES = "~"  # sorts after every digit


def hour_floor(time_us: int) -> int:
    """The beginning of the hour, in microseconds."""
    return time_us - time_us % HOUR_US


def hour_of(key: str) -> int | None:
    """The hour in which a data or tombstone object was named, in microseconds; None for other names."""
    match = _DATED.fullmatch(key)
    if match is None:
        return None
    try:
        year, month, day, hour = map(int, match.groups())
        return int(datetime(year, month, day, hour, tzinfo=UTC).timestamp()) * SECOND_US
    except ValueError:
        return None


def hour_prefix(directory: str, time_us: int) -> str:
    """``data/<table>/YYYY/MM/DD/HH/``, or the same under ``tombstone/``, for a directory ``data/<table>/``."""
    kind, table, _ = directory.split("/")
    name = {"data": data_key, "tombstone": tombstone_key}[kind](table, max(time_us, 0), "")
    return name[: name.rindex("/") + 1]


def directories(store: ObjectStore, kind: str) -> Iterator[str]:
    """``<kind>/<table>/`` of every table with objects, dropped tables included: one request each, whatever they
    hold."""
    last = ""
    while True:
        first = next(iter(store.list(f"{kind}/", last)), None)
        if first is None:
            return
        parts = first.key.split("/")
        if len(parts) < 3:  # not an object of dolmen
            last = first.key
            continue
        directory = f"{kind}/{parts[1]}/"
        if hour_of(f"{directory}2000/01/01/00/x") is not None:  # a table's name
            yield directory
        last = directory + _AFTER_DATES
