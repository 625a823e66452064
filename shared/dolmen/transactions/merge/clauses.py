"""The clauses of a merge, and the templates of the rows that clauses and updates write."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar

import pyarrow as pa
from msgspec import Struct
from pyarrow import types as t

from dolmen.base import pc
from dolmen.base.arguments import text
from dolmen.base.records import replace
from dolmen.errors import InputError, PredicateError, RowError, SchemaError, short_repr
from dolmen.format.manifest import TableEntry
from dolmen.format.properties import sequence_column
from dolmen.format.schema import Field, Schema, own_names, same_names
from dolmen.format.types import is_text
from dolmen.predicate.constants import scalar_from_text
from dolmen.predicate.domains import domain_of
from dolmen.rows.scan.engines.expressions import Evaluator, Literals, Sides
from dolmen.rows.write.casts import Cast, FindCast, Misfit, lossless_cast, misfit_error, short_value
from dolmen.rows.write.conform import check_values, conform_batch, plan_conform

TARGET, SOURCE = "target", "source"

Values: TypeAlias = Mapping[str, str | None]
"""SQL expressions over ``target.<column>`` and ``source.<column>``, by column of the table: DuckDB's SQL in
``Table.merge``, Spark's in ``dolmen.spark.write.merge_frame``. None is NULL."""


class Expression(Struct, frozen=True):
    """An SQL expression in DuckDB's dialect over the columns of a row: ``Expression("price * 1.1")``.

    It sees the columns of its row by their names. Subqueries, aggregates and window functions are refused. It needs
    DuckDB (``pip install 'dolmen[sql]'``). ``sql``: the text.
    """

    sql: str


class Update(Struct, frozen=True):
    """Updates a target row.

    Args:
        values: the new values; by default, those of all columns that the source has.
        when: an SQL expression; only rows for which it is TRUE.
    """

    values: Values | None = None
    when: str | None = None


class Delete(Struct, frozen=True):
    """Deletes a target row. ``when``: an SQL expression; only rows for which it is TRUE."""

    when: str | None = None


class Insert(Struct, frozen=True):
    """Adds a row.

    Args:
        values: its values, over ``source.<column>``; other columns have their defaults, which are NULL where no other
            was set. By default, the source's.
        when: an SQL expression; only source rows for which it is TRUE.
    """

    values: Values | None = None
    when: str | None = None


Clause: TypeAlias = Update | Delete | Insert
ClauseT = TypeVar("ClauseT", Update | Delete, Insert)
WhenMatched: TypeAlias = Literal["update", "delete"] | Values | Update | Delete | Sequence[Update | Delete] | None
WhenNotMatched: TypeAlias = Literal["insert"] | Values | Insert | Sequence[Insert] | None
WhenNotMatchedBySource: TypeAlias = Literal["delete"] | Values | Update | Delete | Sequence[Update | Delete] | None

_FORMS = {
    "when_matched": "'update', 'delete'",
    "when_not_matched": "'insert'",
    "when_not_matched_by_source": "'delete'",
}


class Clauses(Struct, frozen=True):
    """All clauses of a merge. For each row, the first clause of its kind whose condition is TRUE is applied."""

    matched: tuple[Update | Delete, ...]
    not_matched: tuple[Insert, ...]
    by_source: tuple[Update | Delete, ...]

    @classmethod
    def of(cls, matched: WhenMatched, not_matched: WhenNotMatched, by_source: WhenNotMatchedBySource) -> Clauses:
        """Reads the arguments of ``merge``. Raises InputError if one is not a clause, or can never be reached."""
        clauses = cls(
            tuple(_clauses("when_matched", matched, Update, (Update, Delete))),  # type: ignore[arg-type]
            tuple(_clauses("when_not_matched", not_matched, Insert, (Insert,))),  # type: ignore[arg-type]
            tuple(_clauses("when_not_matched_by_source", by_source, Update, (Update, Delete))),  # type: ignore[arg-type]
        )
        if not clauses.all:
            raise InputError("this merge does nothing: give when_matched=... or when_not_matched=...")
        for clause in clauses.by_source:
            if isinstance(clause, Update) and clause.values is None:
                raise InputError("when_not_matched_by_source: there is no source row: name the columns that change")
        return clauses

    def with_names_of(self, schema: Schema) -> Clauses:
        """The clauses with columns spelled as in the table. Raises InputError if a clause sets a column twice."""
        return Clauses(
            tuple(_rename_columns(clause, schema) for clause in self.matched),
            tuple(_rename_columns(clause, schema) for clause in self.not_matched),
            tuple(_rename_columns(clause, schema) for clause in self.by_source),
        )

    @property
    def all(self) -> tuple[Clause, ...]:
        """All clauses in order: a clause's index is the number of its action."""
        return (*self.matched, *self.not_matched, *self.by_source)

    def is_upsert(self, entry: TableEntry, on: Collection[str], source_names: Collection[str]) -> bool:
        """True if the merge only replaces whole rows by their primary key, which needs no reading."""
        whole = set(source_names) == {field.name for field in entry.schema.fields}
        return self == Clauses((Update(),), (Insert(),), ()) and whole and is_primary_key(on, entry)

    def inserts_by_primary_key(self, entry: TableEntry, on: Collection[str]) -> bool:
        """True if source rows that match no primary key are inserted, so each needs a key of its own."""
        return bool(self.not_matched) and is_primary_key(on, entry)

    @property
    def is_delete(self) -> bool:
        """True if the merge only deletes all matched rows."""
        return self == Clauses((Delete(),), (), ())

    @property
    def takes_all_matched(self) -> bool:
        """True if exactly the matched target rows change."""
        return bool(self.matched) and self.matched[-1].when is None and not self.by_source

    @property
    def deletes_all_matched(self) -> bool:
        """True if every matched target row is deleted: several source rows may then match the same one."""
        return self.matched == (Delete(),)

    @property
    def texts(self) -> list[str]:
        """The SQL expressions of all clauses."""
        texts = [clause.when for clause in self.all if clause.when is not None]
        return texts + [text for clause in self.all for text in (_values(clause) or {}).values() if text is not None]

    def may_name(self, column: str) -> bool:
        """True if some expression may name a column: the name is in it as a word."""
        word = re.compile(rf"(?<!\w){re.escape(column)}(?!\w)", re.IGNORECASE)
        return any(word.search(text.replace("``", "`").replace('""', '"')) for text in self.texts)

    def new_columns(self, names: Collection[str], source_names: Iterable[str]) -> list[str]:
        """The source's columns that a clause would write, and that the table, with columns ``names``, lacks."""
        if not any(not isinstance(clause, Delete) and clause.values is None for clause in self.all):
            return []
        return [name for name in source_names if name not in names and not self.may_name(name)]

    def check_columns(self, names: Collection[str], source_names: Collection[str]) -> None:
        """Raises SchemaError if the table lacks a column that a clause names, or would write from the source."""
        for clause in self.all:
            if isinstance(clause, Delete):
                continue
            for name in clause.values or ():
                if name not in names:
                    raise SchemaError(f"no column {name!r} in the table; there are: {', '.join(sorted(names))}")
        if extra := self.new_columns(names, source_names):
            raise SchemaError(
                f"no column {extra[0]!r} in the table, and no expression of the merge names it; drop it, name the "
                'columns that are to be written, or give new_columns="add" or "ignore"'
            )

    def check_updates(self, entry: TableEntry, on: Collection[str], source_names: Collection[str]) -> None:
        """Raises SchemaError if an update may change a primary key (not by ``on``), or the order of changes (CDC)."""
        primary = entry.schema.names_of(entry.primary_key)
        for clause in (*self.matched, *self.by_source):
            if isinstance(clause, Delete):
                continue
            if clause.values is None:
                if others := [name for name in source_names if name in primary and name not in on]:
                    raise SchemaError(
                        f"column {others[0]!r} is part of the primary key, which identifies a row, and rows do not "
                        "match by it: say which columns an update sets, when_matched={...}, or leave it out of the "
                        "source"
                    )
                continue
            for name, expression in clause.values.items():
                sides = ("target", "source") if name in on and clause in self.matched else ("target",)
                if not any(_is_column(expression, side, name) for side in sides):
                    check_updatable(entry, entry.schema.field(name))

    def may_insert_twice(self, entry: TableEntry, on: Collection[str]) -> bool:
        """True if an inserted row may get a primary key that the table has, or another inserted row."""
        primary = entry.schema.names_of(entry.primary_key)
        if not is_primary_key(on, entry):
            return bool(primary and self.not_matched)
        values = [clause.values for clause in self.not_matched if clause.values is not None]
        return not all(_is_column(each.get(name), "source", name) for each in values for name in primary)

    def content(self) -> list[Any]:
        """The content of the clauses, for the digest of a request."""
        counts = [len(self.matched), len(self.not_matched), len(self.by_source)]
        return [counts, [[type(clause).__name__, clause.when, _values(clause)] for clause in self.all]]


def check_updatable(entry: TableEntry, field: Field) -> None:
    """Raises SchemaError if an update can't set a column: it is part of the key, or orders changes."""
    if field.id in entry.primary_key:
        raise SchemaError(
            f"column {field.name!r} is part of the primary key, which identifies a row: delete the row and append "
            "another one, in a transaction"
        )
    if entry.sequences is not None and field.name == sequence_column(entry.properties):
        raise SchemaError(f"column {field.name!r} orders the changes (CDC) of the table, and belongs to them")


def is_primary_key(names: Collection[str], entry: TableEntry) -> bool:
    """True if these columns are the table's primary key, in any order."""
    return set(names) == set(entry.schema.names_of(entry.primary_key))


def _is_column(expression: str | None, side: str, name: str) -> bool:
    """True if an expression is a column of one side."""
    same = [f"{side}.{quote}{name}{quote}".lower() for quote in ("", '"', "`")]
    return (expression or "").strip().lower() in same


def _clauses(
    option: str, argument: object, of_values: type[Update | Insert], allowed: tuple[type, ...]
) -> Iterable[Update | Delete | Insert]:
    words = {"update": Update(), "delete": Delete(), "insert": Insert()}
    items = list(argument) if isinstance(argument, (list, tuple)) else [] if argument is None else [argument]
    clauses: list[Clause] = []
    for one in items:
        if clauses and clauses[-1].when is None:
            raise InputError(f"{option}: clauses after one without a condition are never applied ({clauses[-1]!r})")
        clause = words.get(one, one) if isinstance(one, str) else of_values(one) if isinstance(one, Mapping) else one
        if not isinstance(clause, allowed):
            kinds = ", ".join(kind.__name__ for kind in allowed)
            raise InputError(
                f"{option}={short_repr(one)}: give {_FORMS[option]}, columns with expressions, {kinds}, or a list"
            )
        clauses.append(_check_texts(option, clause))  # type: ignore[arg-type]
    return clauses


def _check_texts(option: str, clause: Clause) -> Clause:
    """Returns the clause with NULL for None. Raises InputError for names and expressions that are not text."""
    if clause.when is not None:
        text(f"{option}: when", clause.when)
    if isinstance(clause, Delete) or clause.values is None:
        return clause
    if not isinstance(clause.values, Mapping):
        raise InputError(f"{option}: values={short_repr(clause.values)}: give columns with expressions")
    if not clause.values:
        raise InputError(f"{option}: values={{}} name no column: leave them out for those of the source")
    for column, expression in clause.values.items():
        text(f"{option}: a column", column)
        if expression is not None:
            text(f"{option}: an expression", expression)
    return replace(clause, values={name: "NULL" if sql is None else sql for name, sql in clause.values.items()})


def _rename_columns(clause: ClauseT, schema: Schema) -> ClauseT:
    if isinstance(clause, Delete) or clause.values is None:
        return clause
    names = own_names(clause.values, schema)
    if alike := same_names(names):
        raise InputError(f"a clause sets column {alike[0]!r} twice")
    return replace(clause, values=dict(zip(names, clause.values.values(), strict=True)))


def _values(clause: Clause) -> dict[str, str | None] | None:
    return None if isinstance(clause, Delete) or clause.values is None else dict(clause.values)


class SideColumn(Struct, frozen=True):
    """A column as one side has it."""

    side: str
    name: str


class RepeatedValue(Struct, frozen=True):
    """The same value in all rows, as an array of one element in the column's type."""

    value: pa.Array


Term: TypeAlias = SideColumn | Expression | RepeatedValue  # where the values of a column come from


def terms_of(
    clause: Update | Insert, names: Sequence[str], source_names: Collection[str]
) -> dict[str, SideColumn | Expression]:
    """Where each column of the rows that a clause writes comes from: from the source where no values are given."""
    terms: dict[str, SideColumn | Expression]
    if clause.values is None:
        terms = {name: SideColumn(SOURCE, name) for name in names if name in source_names}
    else:
        terms = {name: Expression(text or "NULL") for name, text in clause.values.items()}
    if isinstance(clause, Insert):
        return terms
    return {name: terms.get(name, SideColumn(TARGET, name)) for name in names}


class RowTemplate:
    """Makes rows of a table.

    Raises InputError: DuckDB refuses an expression; SchemaError: values are of another kind than their column.

    Args:
        terms: by column of the table; columns without one have their default.
        sides: the columns of each side.
        find: how values that are not computed are cast to the table's types.
    """

    def __init__(
        self,
        schema: Schema,
        terms: Mapping[str, Term],
        sides: Mapping[str, pa.Schema],
        evaluator: Evaluator | None,
        find: FindCast = lossless_cast,
    ) -> None:
        self._terms, self._evaluator = dict(terms), evaluator
        self._texts = list(dict.fromkeys(term.sql for term in terms.values() if isinstance(term, Expression)))
        types = dict(zip(self._texts, evaluator.types(self._texts, sides) if evaluator else (), strict=True))
        fields = [pa.field(name, _type(term, sides, types)) for name, term in self._terms.items()]
        find_casts = {
            name: casts_of(evaluator.literals(term.sql, sides))
            for name, term in self._terms.items()
            if isinstance(term, Expression) and evaluator
        }
        self._plan = plan_conform(pa.schema(fields), schema, find, find_casts=find_casts)

    def make(self, sides: Sides) -> pa.RecordBatch:
        """The rows of some sides.

        Raises InputError if an expression fails, RowError if a value does not fit its column, is not valid for its type
        (DuckDB has a time 24:00:00), or is NULL where none is allowed.
        """
        results = self._evaluator.evaluate(self._texts, sides) if self._evaluator else []
        computed = dict(zip(self._texts, results, strict=True))
        rows = next(iter(sides.values())).num_rows
        arrays = [self._values(term, sides, computed, rows) for term in self._terms.values()]
        try:
            for name, term in self._terms.items():
                if isinstance(term, Expression):
                    check_values(pa.record_batch([computed[term.sql]], [name]))
            return conform_batch(pa.RecordBatch.from_arrays(arrays, names=list(self._terms)), self._plan)
        except RowError as error:  # its row number counts within a batch, which helps no reader of the error
            raise type(error)(error.reason, column=error.column) from None

    @staticmethod
    def _values(term: Term, sides: Sides, computed: Mapping[str, pa.Array], rows: int) -> pa.Array:
        match term:
            case SideColumn(side, name):
                return sides[side][name]
            case Expression(sql):
                return computed[sql]
            case RepeatedValue(value):
                return value.take(pa.repeat(pa.scalar(0, pa.int32()), rows))


def _type(term: Term, sides: Mapping[str, pa.Schema], types: Mapping[str, pa.DataType]) -> pa.DataType:
    match term:
        case SideColumn(side, name):
            return sides[side].field(name).type
        case Expression(sql):
            return types[sql]
        case RepeatedValue(value):
            return value.type


NO_LITERALS = Literals(only_literals=False, only_literal_texts=False, has_null=False)


def casts_of(literals: Literals) -> FindCast:
    """The casts of an expression's values, given its literals: as ``lossless_cast`` makes, and the following.

    ==========================  ============================================================================
    from                        to
    ==========================  ============================================================================
    decimal                     float: the nearest one, if it reads as the same number (0.1, not 16777217.0)
    a literal float             float, decimal, integer: if it reads as the same number (1e3, 0.1e0)
    a literal text              any type but a nested one: as predicates read it, no digit lost
    NULL                        any type
    ==========================  ============================================================================
    """
    return partial(_find_cast, literals)


def _find_cast(literals: Literals, source: pa.DataType, target: pa.DataType) -> Cast | None:
    if literals.only_literals and t.is_floating(source) and _is_number(target) and source != target:
        return _cast_if_same(_reparse_floats, target)
    try:
        return lossless_cast(source, target)
    except SchemaError:
        if t.is_decimal(source) and t.is_floating(target):
            return _cast_if_same(_nearest_floats, target)
        if literals.only_literal_texts and is_text(source) and domain_of(target) is not None:
            return partial(_parse, target=target)
        if literals.has_null and t.is_int32(source):
            return partial(_cast_nulls, target=target)
        raise


def _is_number(kind: pa.DataType) -> bool:
    return bool(t.is_floating(kind) or t.is_decimal(kind) or t.is_integer(kind))


def _cast_if_same(make: Callable[[pa.Array, pa.DataType], pa.Array | None], target: pa.DataType) -> Cast:
    """A cast that refuses the values for which ``make`` fails, or returns None."""

    def cast(array: pa.Array) -> pa.Array:
        try:
            result = make(array, target)
        except pa.ArrowInvalid:
            result = None
        if result is None:
            raise _rounding_misfit(array, target)
        return result

    return cast


def _nearest_floats(array: pa.Array, target: pa.DataType) -> pa.Array | None:
    """Decimals as floats. Only through text does Arrow make the nearest float of each."""
    wide = pa.decimal256(76, array.type.scale)
    result = array.cast(pa.string()).cast(target)
    exact = array.cast(wide)
    if result.cast(pa.string()).cast(wide).equals(exact) or result.cast(wide).equals(exact):
        return result
    return None


def _reparse_floats(array: pa.Array, target: pa.DataType) -> pa.Array | None:
    """Floats as the numbers of their shortest text."""
    text = array.cast(pa.string())
    if not t.is_floating(target):
        return text.cast(pa.decimal256(76, target.scale if t.is_decimal(target) else 0)).cast(target)
    result = text.cast(target)
    same = result.cast(pa.string()).cast(array.type)
    return result if pc.all(pc.or_(pc.equal(same, array), pc.is_nan(array))).as_py() is not False else None


def _parse(array: pa.Array, target: pa.DataType) -> pa.Array:
    encoded = array.dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    try:
        values = pa.array([scalar_from_text(text, target) for text in texts], target)
    except PredicateError:
        raise Misfit(f"{short_value(array[0].as_py())} is no {target}" if len(array) == 1 else "") from None
    if t.is_floating(target) and not all(map(_is_same_number, texts, values.cast(pa.string()).to_pylist())):
        raise _rounding_misfit(array, target)
    return values.take(encoded.indices)


def _is_same_number(text: str, shortest: str) -> bool:
    """True if two texts are the same number; ``shortest`` is the shortest text of a float."""
    number = Decimal(text)
    return number.is_nan() or number == Decimal(shortest)


def _cast_nulls(array: pa.Array, target: pa.DataType) -> pa.Array:
    """The NULLs of DuckDB 1, which are integers."""
    if array.null_count < len(array):
        raise misfit_error(array, target)
    return pa.nulls(len(array), target)


def _rounding_misfit(array: pa.Array, target: pa.DataType) -> Misfit:
    misfit = misfit_error(array, target)
    return Misfit(f"{misfit}: round it") if str(misfit) else misfit
