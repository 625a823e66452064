"""The columns that tables have beside those of all histories, and what rows may have in them.

A column is known by its number, whatever its name is. Rows that are written without it get its default of that time; a
commit may have been prepared on any version since its operation began, so a row has a set of possible values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

GENERATION = 10**9
"""A row that is updated gets a new number: that of the update times this, plus the rest of its own."""


class ModelColumn(NamedTuple):
    """A column of a table.

    Args:
        number: what it is known by; negative for those that all tables have.
        default: the value of rows that are written without it.
        initial: the value of rows that were there when it was added.
        nullable: whether NULL is allowed.
        new_fields: names of the fields that a struct got later, in which all rows have NULL.
    """

    number: int
    name: str
    default: int | None = None
    initial: int | None = None
    nullable: bool = True
    new_fields: tuple[str, ...] = ()


BASE = tuple(ModelColumn(-place, name) for place, name in enumerate(("k", "v", "u", "t", "s"), 1))
"""The columns that all tables have."""

Possible: TypeAlias = Mapping[int, Mapping[int, frozenset[int | None]]]
"""By the rest of a row's number, and by the number of a column: the values that the row may have in it."""

NOTHING_ADDED: Possible = MappingProxyType({})


def added_columns(columns: Iterable[ModelColumn]) -> list[ModelColumn]:
    """The columns beside those that all tables have."""
    return [column for column in columns if column.number > 0]


def fill(known: Possible, numbers: Iterable[int], values: Mapping[int, frozenset[int | None]]) -> Possible:
    """Gives rows that are not known yet their possible values.

    Args:
        numbers: those of the rows.
        values: by the number of a column.
    """
    made = dict(known)
    for u in numbers:
        row = made.get(u % GENERATION, {})
        if values.keys() - row.keys():
            made[u % GENERATION] = {**values, **row}
    return made


def possible_values(
    column: ModelColumn, earlier: Sequence[Sequence[ModelColumn] | None], *, or_null: bool
) -> frozenset[int | None]:
    """The values that a new row may have in a column that it was written without.

    Args:
        column: the column as it is now.
        earlier: the columns of the table in each version that the row may have been written on; None for no table.
        or_null: whether a writer may have said NULL.
    """
    found = {column.default}
    for columns in earlier:
        if columns is not None:
            there = next((one for one in columns if one.number == column.number), None)
            found.add(column.initial if there is None else there.default)
    return frozenset(found | {None} if or_null else found)
