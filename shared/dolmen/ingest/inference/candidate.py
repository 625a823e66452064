"""One way in which a file may be meant to be read."""

from __future__ import annotations

from dataclasses import dataclass

from dolmen.format.dialect import Dialect
from dolmen.format.ingest_properties import FileKind


@dataclass(frozen=True, slots=True)
class Candidate:
    """A format and a dialect that fit a sample of a file.

    Args:
        dialect: only what differs from the strict one was found, or was given by the user.
        notes: what was assumed, for people; short sentences such as ``';' separates the fields``. None repeats what
            the dialect's properties say by themselves; each names what a row of data would be lost by.
        losses: what the rows do not hold of the file.
    """

    kind: FileKind
    dialect: Dialect
    notes: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
