"""The names under which a late file may have the columns by which rows were erased since.

A late row was erased if it matches under the names of the time at which its file was dropped: so its row would have
matched if it had been ingested then. It may match otherwise: as it would land now, or if a column that the file lacks
stands under another name that it once had. Then the row may be an erased one or another, and it is rejected.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from dolmen.format.column_names import Names, distinct_names, named_since, names_around
from dolmen.format.erasures import CLOCK_STEP_US
from dolmen.format.schema import Schema


@dataclass(frozen=True)
class LateNames:
    """Names of the columns by which rows were erased, by id.

    Args:
        ids: these columns.
        then: the names of the time at which the file was dropped; several if that time is not known exactly.
        now: the names of the table now, by which the file is read.
        others: with a name that a column had at another time, and that was no other column's when the file was dropped.
        is_complete: whether ``then`` is known. The table may be older than the recording of names.
    """

    ids: tuple[int, ...]
    then: tuple[Names, ...]
    now: Names
    others: tuple[Names, ...]
    is_complete: bool

    @classmethod
    def of(
        cls, schema: Schema, ids: Collection[int], dropped_us: int | None, more: Iterable[tuple[int, str]]
    ) -> LateNames:
        """The names in the history of a table's columns.

        Args:
            dropped_us: when the file was dropped, by the server's clock; None if that is not known.
            more: names that these columns are known to have had, beside those of the schema.
        """
        now = {field.id: field.name for field in schema.fields if field.id in ids}
        around = names_around(schema, dropped_us)
        then = distinct_names({id_: names[id_] for id_ in ids if id_ in names} for names in around)
        taken = _columns_by_name(schema, around, dropped_us)
        known = [(name.id, name.name) for name in schema.former if name.id in ids]
        others = [
            {**now, id_: name}
            for id_, name in dict.fromkeys([*known, *more])
            if now.get(id_) != name and all(names.get(id_) != name for names in then) and taken.get(name, id_) == id_
        ]
        first_us = -1 if dropped_us is None else dropped_us - CLOCK_STEP_US
        is_complete = named_since(schema) <= first_us or not named_since(schema)
        return cls(tuple(sorted(ids)), then, now, distinct_names(others), is_complete)

    @property
    def may_differ(self) -> bool:
        """Whether a file may have these columns under other names than those of the table now."""
        return bool(self.others) or self.then != (self.now,) or not self.is_complete

    def spell(self, found: Iterable[str]) -> frozenset[str]:
        """The names of these that a file's columns have, in whatever case, and the file's own names."""
        given = frozenset(found)
        lower = {name.lower() for name in given}
        known = {name for names in (*self.then, self.now, *self.others) for name in names.values()}
        return given | {name for name in known if name.lower() in lower}

    def select(self, present: Collection[str]) -> tuple[Names, ...]:
        """Those of ``then`` that most fit a file which has some columns: all of them if nothing else tells."""
        fits = [sum(name in present for name in names.values()) for names in self.then]
        return tuple(names for names, fit in zip(self.then, fits, strict=True) if fit == max(fits))

    def lacking(self, present: Collection[str]) -> list[int]:
        """The columns that a file has under none of the names of its time, and that it may have under another one."""
        found = {id_ for names in (*self.then, self.now) for id_, name in names.items() if name in present}
        return [id_ for id_ in self.ids if id_ not in found]


def _columns_by_name(schema: Schema, around: Iterable[Names], dropped_us: int | None) -> Mapping[str, int]:
    """The columns that the table had when a file was dropped, by name."""
    since = 2**63 if dropped_us is None else dropped_us + CLOCK_STEP_US
    late = {field.id for field in schema.fields if field.added_ts > since}
    return {name: id_ for names in around for id_, name in names.items() if id_ not in late}
