"""INSERT, DELETE, UPDATE and MERGE as calls of a table's methods, in a transaction.

A DELETE or UPDATE that looks only at the row it changes calls ``delete`` or ``update``. For any other one, with USING,
FROM, a subquery or RETURNING, a query finds the rows with their positions in files. They are hidden, and those
of an UPDATE are written again with their new values. Queries read the tables as the transaction sees them, and what
they read must still hold at the commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from pyroaring import BitMap

from dolmen.base.runtime import cached_property
from dolmen.base.units import count_text
from dolmen.errors import InputError, SchemaError, short_repr
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import DefaultFunction, Field, Schema
from dolmen.format.types import from_json, quote_name
from dolmen.predicate.ast import Predicate
from dolmen.predicate.text import typed_literal
from dolmen.rows.scan.conditions import read_condition
from dolmen.rows.scan.engines.dataframes import RowSource
from dolmen.rows.scan.engines.expressions import Evaluator, Literals, literals_of_query
from dolmen.rows.scan.engines.sql import KeptRows, SqlResult
from dolmen.rows.scan.plan import stored_schema_of
from dolmen.rows.scan.scan import Scan, rows_with_positions
from dolmen.rows.write.casts import FindCast, lossless_cast
from dolmen.rows.write.conform import conform, conform_batch, plan_conform
from dolmen.sql.queries import Queries
from dolmen.sql.statements import (
    DEFAULT,
    ChangingStatement,
    DeleteStatement,
    InsertStatement,
    MergeClause,
    MergeStatement,
    OnConflict,
    UpdateStatement,
)
from dolmen.sql.tokens import DUCKDB, SqlReader, replace_spans, requalify, tokenize
from dolmen.transactions.merge.clauses import Clauses, Delete, Expression, Insert, Update, casts_of, check_updatable
from dolmen.transactions.merge.merge import ACTION, merge_rows
from dolmen.transactions.merge.merge_source import SourceRows
from dolmen.transactions.row_locations import HiddenRows
from dolmen.transactions.row_statements import TableChange
from dolmen.transactions.transaction import Transaction, unit_of
from dolmen.transactions.transaction_table import TransactionTable

FILE, ROW, VALUE = "__dolmen_file", "__dolmen_row", "__dolmen_value_"
"""Columns of queries that find rows with their positions."""
ROWS = "dolmen_rows"  # the relation of the rows that a statement has changed, or will change, as in ``executemany``
_MOST_VALUES = 1_000  # values of VALUES that one query computes
_UNKNOWN = Literals(only_literals=False, only_literal_texts=False, has_null=True)


@dataclass(frozen=True)
class RowCall:
    """A statement on a table, whose WITH is ``ctes``. Its result: rows, if it returns some."""

    transaction: Transaction
    queries: Queries
    ctes: str
    request: str | None
    statement: ChangingStatement

    def run(self) -> pa.Table | None:
        """Makes the call. Raises as the method does, and InputError for what DuckDB refuses."""
        match self.statement:
            case InsertStatement() as statement:
                return self._insert(statement)
            case DeleteStatement() as statement:
                return self._delete(statement)
            case UpdateStatement() as statement:
                return self._update(statement)
            case MergeStatement() as statement:
                return self._merge(statement)

    @cached_property
    def table(self) -> TransactionTable:
        return self.queries.target(self.transaction, self.statement.target.name)

    @cached_property
    def entry(self) -> TableEntry:
        return unit_of(self.transaction).entry(self.table.name)

    @cached_property
    def row_schema(self) -> Schema:
        """The columns for the rows that the statement adds."""
        return TableChange(unit_of(self.transaction), self.table.name, entry=self.entry).row_schema

    def _insert(self, statement: InsertStatement) -> pa.Table | None:
        schema = self.row_schema
        fields = list(schema.fields)
        if statement.columns is not None:
            known = [field for field in fields if not field.write_function] or fields
            fields = [schema.field(name) for name in statement.columns] or known[:1]
        query = _with_defaults(statement.query or "VALUES (DEFAULT)", fields, schema)
        lists = [] if statement.by_name else _lists(query)
        try:
            result = self.queries.run(f"{self.ctes}\n{query}")
            found = result.to_arrow().to_reader() if lists else result.stream()
        except InputError:
            if {len(each) for each in lists} != {len(fields)}:
                raise
            return self._add(statement, self._rows_of_lists(lists, fields))
        if statement.by_name:
            fields = [schema.field(name) for name in result.columns]
        if len(fields) != len(result.columns):
            raise SchemaError(
                f"table {self.table.name!r}: {count_text(len(result.columns), 'value')} for "
                f"{count_text(len(fields), 'column')}: "
                f"{', '.join(field.name for field in fields)}"
            )
        literals = self.queries.literals.get(query) or literals_of_query(query) or []
        find_casts = {field.name: casts_of(each) for field, each in zip(fields, literals, strict=False)}
        return self._add(statement, fitted_rows(found, [field.name for field in fields], schema, find_casts))

    def _rows_of_lists(self, lists: Sequence[Sequence[str]], fields: Sequence[Field]) -> pa.RecordBatchReader:
        """The rows of VALUES whose columns have no type in common: each value becomes one of its column by itself."""
        schema, names = self.row_schema, [field.name for field in fields]
        width, batches = len(names), list[pa.RecordBatch]()
        for start in range(0, len(lists), step := max(1, _MOST_VALUES // width)):
            texts = [text for texts in lists[start : start + step] for text in texts]
            query = "SELECT " + ", ".join(f"(\n{text}\n) AS v{index}" for index, text in enumerate(texts))
            values = self.queries.run(f"{self.ctes}\n{query}").to_arrow().combine_chunks().to_batches()[0]
            found = literals_of_query(query) or [_UNKNOWN] * len(texts)
            for first in range(0, len(texts), width):
                casts = {name: casts_of(each) for name, each in zip(names, found[first:], strict=False)}
                batch = pa.RecordBatch.from_arrays(values.columns[first : first + width], names=names)
                plan = plan_conform(batch.schema, schema, lossless_cast, find_casts=casts)
                batches.append(conform_batch(batch, plan, first_row=start + first // width + 1))
        return pa.RecordBatchReader.from_batches(schema.arrow, batches)

    def _add(self, statement: InsertStatement, rows: Any) -> pa.Table | None:
        schema = self.row_schema
        if statement.conflict is not None and not statement.conflict.replaces_rows:
            return self._insert_or_update(rows, statement.conflict, statement.returning)
        returned = None
        if statement.returning is not None:
            rows = KeptRows(schema.arrow, rows).to_table()
            returned = self._returned(rows, statement.returning)
        if statement.conflict is not None:
            self._check_conflict(statement.conflict)
            self.table.upsert(rows, request=self.request)
        else:
            write = self.table.insert if self.table.primary_key else self.table.append
            write(rows, request=self.request)
        return returned

    def _check_conflict(self, conflict: OnConflict) -> list[str]:
        """The primary key. Raises InputError if the clause names other columns."""
        table, key = self.table, list(self.table.primary_key)
        named = key if conflict.columns is None else [self.entry.schema.field(name).name for name in conflict.columns]
        if not key or sorted(named) != sorted(key):
            columns = ", ".join(key) or "none"
            raise InputError(
                f"ON CONFLICT goes by the primary key of {table.name!r} (columns: {columns}): for other columns, use "
                "merge(on=...)"
            )
        return key

    def _insert_or_update(self, rows: Any, conflict: OnConflict, returning: str | None) -> pa.Table | None:
        key = self._check_conflict(conflict)
        matched: Any = None  # DO NOTHING
        if conflict.values:
            names = self._sides("excluded", [field.name for field in self.entry.schema.fields])
            values = self._named_values(conflict.values, names, strict=True)
            others = {field.name for field in self.entry.schema.fields} - set(key)
            is_whole = values.keys() == others and all(
                _is_column(text, "source", name) for name, text in values.items()
            )
            when = None if conflict.when is None else requalify(conflict.when, names, strict=True)
            matched = Update(None if is_whole else values, when)
        return self._merge_rows(rows, key, (matched, "insert", None), returning)

    def _delete(self, statement: DeleteStatement) -> pa.Table | None:
        if self._needs_only_own_row(statement.where, statement.using or statement.returning):
            where = requalify(statement.where or "TRUE", self._own_names)
            self.table.delete(where, request=self.request)
            return None
        unit_of(self.transaction).operations.append("delete")
        names = [field.name for field in self.entry.schema.fields] if statement.returning is not None else []
        found = self._find_rows(names, [], statement.using, statement.where)
        return self._replace(found, names, {}, statement.returning, keep=False)

    def _update(self, statement: UpdateStatement) -> pa.Table | None:
        values = self._named_values(statement.values, self._own_names)
        needs_only_own_row = self._needs_only_own_row(statement.where, statement.using or statement.returning)
        if needs_only_own_row and self._need_no_other_row(values):
            new = {name: Expression(text) for name, text in values.items()}
            for _, text in statement.values:
                requalify(text, self._own_names, strict=True)
            where = requalify(statement.where or "TRUE", self._own_names)
            self.table.update(new, where, request=self.request)
            return None
        for name in values:
            check_updatable(self.entry, self.entry.schema.field(name))
        unit_of(self.transaction).operations.append("update")
        names = [field.name for field in self.entry.schema.fields]
        texts = self._named_values(statement.values, {})
        find_casts = {name: casts_of(self._literals(text)) for name, text in values.items()}
        kept = [name for name in names if name not in texts]
        found = self._find_rows(kept, list(texts.values()), statement.using, statement.where)
        names = [*kept, *texts]
        return self._replace(found, names, find_casts, statement.returning, keep=True)

    def _merge_rows(self, source: Any, on: list[str], clauses: Sequence[Any], returning: str | None) -> pa.Table | None:
        """``Table.merge``, whose changed rows RETURNING shows."""
        if returning is None:
            self.table.merge(source, on, *clauses, request=self.request)
            return None
        unit, schema = unit_of(self.transaction), self.entry.schema
        unit.operations.append("merge")
        changed = KeptRows(pa.schema([(ACTION, pa.string()), *schema.arrow]))
        with unit.savepoint():
            change = TableChange(unit, self.table.name, self.request, self.entry)
            merge_rows(change, SourceRows.of(source, schema), on, Clauses.of(*clauses), changed=changed)
        return self._returned(changed.to_table(), returning)

    def _merge(self, statement: MergeStatement) -> pa.Table | None:
        alias = statement.source_alias or "source"
        source = f"{statement.source} AS {quote_name(alias)}"
        if statement.source_columns:
            source += f"({', '.join(map(quote_name, statement.source_columns))})"
        names = self.queries.run(f"{self.ctes}\nSELECT * FROM {source}").columns
        pairs = self._equal_columns(statement, alias, names)
        # The columns that the merge joins on get the table's names, and other columns that have these are renamed: for
        # ON t.id = s.key, the source's `key` is read as `id`, too, and its own `id` as `__dolmen_value_id`.
        others = {mine: theirs for mine, theirs in pairs.items() if mine.lower() != theirs.lower()}
        taken = {mine.lower() for mine in others}
        moved = {name.lower(): f"{VALUE}{name}" for name in names if name.lower() in taken}
        columns = [f"{quote_name(theirs)} AS {quote_name(mine)}" for mine, theirs in others.items()]
        columns += [f"{quote_name(name)} AS {quote_name(moved.get(name.lower(), name))}" for name in names]
        rows = self.queries.run(f"{self.ctes}\nSELECT {', '.join(columns)} FROM {source}")
        sides = self._sides(alias, names, moved)
        matched, not_matched, by_source = (
            [self._clause(clause, sides) for clause in _reachable(statement.clauses, kind)] or None
            for kind in ("matched", "not matched", "not matched by source")
        )
        clauses = (matched, not_matched, by_source)
        if not any(clauses):
            empty = pa.schema([(ACTION, pa.string()), *self.entry.schema.arrow]).empty_table()
            return None if statement.returning is None else self._returned(empty, statement.returning)
        return self._merge_rows(rows.stream(), list(pairs), clauses, statement.returning)

    def _clause(self, clause: MergeClause, sides: Mapping[str, str]) -> Any:
        when = None if clause.when is None else requalify(clause.when, sides, strict=True)
        if clause.action == "delete":
            return Delete(when)
        values, schema = clause.values, self.entry.schema
        if values is not None and not values[0][0]:
            if len(values) != len(schema.fields):
                counts = f"{count_text(len(values), 'value')} for {count_text(len(schema.fields), 'column')}"
                raise InputError(f"{counts}: name the columns")
            values = tuple((field.name, text) for field, (_, text) in zip(schema.fields, values, strict=True))
        named = None if values is None else self._named_values(values, sides, strict=True)
        return (Insert if clause.action == "insert" else Update)(named, when)

    def _equal_columns(self, statement: MergeStatement, alias: str, source: Sequence[str]) -> dict[str, str]:
        """The columns of the source by those of the table that they equal. Raises InputError for other conditions."""
        schema = self.entry.schema
        theirs = {name.lower(): name for name in source}
        if statement.using:
            return {schema.field(name).name: theirs.get(name.lower(), name) for name in statement.using}
        with closing(Evaluator()) as evaluator:
            pairs = evaluator.equal_columns(statement.on)
        found: dict[str, str] = {}
        for one, other in pairs or [([], [])]:
            sides = dict(side for each in (one, other) if (side := self._side(each, alias, theirs)))
            if sides.keys() != {"target", "source"}:
                raise InputError(
                    f"ON {short_repr(statement.on)}: a MERGE joins on columns of both that are equal, as merge(on=...) "
                    "does: ON t.id = s.id; put other conditions into WHEN ... AND, or into the source's query"
                )
            found[schema.field(sides["target"]).name] = sides["source"]
        return found

    def _side(self, name: Sequence[str], alias: str, theirs: Mapping[str, str]) -> tuple[str, str] | None:
        """ "target" or "source", and the column that a name means; None if that is not clear."""
        if not name:
            return None
        column = theirs.get(name[-1].lower())
        if len(name) == 2:
            if name[0].lower() == self.statement.target.alias.lower():
                return "target", name[1]
            return ("source", column) if name[0].lower() == alias.lower() and column else None
        is_mine = any(field.name.lower() == name[0].lower() for field in self.entry.schema.fields)
        if is_mine == (column is not None):
            return None
        return ("source", column) if column else ("target", name[0])

    def _needs_only_own_row(self, where: str | None, further_clause: str | None) -> bool:
        """Whether a statement needs only the row itself for each row: no other table, no subquery, no RETURNING."""
        if self.ctes or further_clause is not None:
            return False
        try:
            read_condition(requalify(where or "TRUE", self._own_names), self.entry.schema, now_us=0)
        except InputError:
            if self._need_no_other_row({"": where or "TRUE"}):
                requalify(where or "TRUE", self._own_names, strict=True)
                raise  # for example, it names no column, or is not a Boolean
            return False
        return True

    def _need_no_other_row(self, values: Mapping[str, str]) -> bool:
        """Whether values can be computed from the row that they are for: they have no subquery and no aggregate."""
        with closing(Evaluator()) as evaluator, suppress(InputError):
            for text in values.values():
                evaluator.columns(text)
            return True
        return False

    def _literals(self, text: str) -> Literals:
        with closing(Evaluator()) as evaluator, suppress(InputError):
            return evaluator.literals(text, {"target": self.entry.schema.arrow})
        return _UNKNOWN  # it has a subquery, whose literals have types of their own

    def _named_values(
        self, values: Iterable[tuple[str, str]], names: Mapping[str, str], *, strict: bool = False
    ) -> dict[str, str]:
        """New values by the table's names of columns; ``names`` and ``strict`` as for ``requalify``."""
        found: dict[str, str] = {}
        for name, text in values:
            field = self.entry.schema.field(name)
            if field.name in found:
                raise InputError(f"the statement sets column {field.name!r} twice")
            is_default = text.upper() == DEFAULT
            found[field.name] = (
                default_sql(field, self.row_schema) if is_default else requalify(text, names, strict=strict)
            )
        return found

    @cached_property
    def _own_names(self) -> dict[str, str]:
        """The columns of the table after its alias, as expressions of its rows name them."""
        alias = self.statement.target.alias
        return {f"{alias}.{field.name}": quote_name(field.name) for field in self.entry.schema.fields}

    def _sides(
        self, alias: str, columns: Iterable[str], moved: Mapping[str, str] = MappingProxyType({})
    ) -> dict[str, str]:
        """The columns of both sides as expressions of a merge name them; ``moved``: the source's new names, by old."""
        source = {f"{alias}.{name}": f"source.{quote_name(moved.get(name.lower(), name))}" for name in columns}
        return {**source, **{name: f"target.{own}" for name, own in self._own_names.items()}}

    def _find_rows(
        self, names: Sequence[str], values: Sequence[str], using: str | None, where: str | None
    ) -> tuple[SqlResult, _PositionedRows]:
        """Rows of the table for which a condition is TRUE: their positions, columns, and values of expressions."""
        target = _PositionedRows(self.table)
        alias = quote_name(self.statement.target.alias)
        columns = [f"{alias}.{quote_name(name)}" for name in (FILE, ROW, *names)]
        columns += [f"(\n{text}\n) AS {quote_name(f'{VALUE}{index}')}" for index, text in enumerate(values)]
        lines = [self.ctes, "SELECT", ", ".join(columns), f"FROM {ROWS} AS {alias}"]
        lines += [f", {using}"] if using is not None else []
        lines += [f"WHERE (\n{where}\n)"] if where is not None else []
        return self.queries.run("\n".join(lines), {ROWS: target}), target

    def _replace(
        self,
        found: tuple[SqlResult, _PositionedRows],
        names: Sequence[str],
        find_casts: Mapping[str, FindCast],
        returning: str | None,
        *,
        keep: bool,
    ) -> pa.Table | None:
        """Hides the rows that were found, and writes them again with their new values if ``keep``.

        Returns the result of RETURNING, if there is one.
        """
        result, target = found
        unit, hidden, schema = unit_of(self.transaction), HiddenRows(), self.row_schema
        change = TableChange(unit, self.table.name, self.request, self.entry)

        def hide(batch: pa.RecordBatch) -> pa.RecordBatch:
            target.hide(batch, hidden, refuse_repeats=keep)
            return pa.RecordBatch.from_arrays(batch.columns[2:], names=list(names))

        with unit.savepoint():
            unit.keep_base()
            found_rows = result.stream()
            fields = list(found_rows.schema)[2:]
            renamed = pa.schema([field.with_name(name) for field, name in zip(fields, names, strict=True)])
            batches = map(hide, found_rows)
            rows: Iterable[pa.RecordBatch]
            if names:
                rows = conform(
                    pa.RecordBatchReader.from_batches(renamed, batches), schema, lossless_cast, find_casts=find_casts
                )
            else:
                rows = (batch for batch in batches if batch.num_columns)
            returned = None
            if returning is not None:
                kept = KeptRows(schema.arrow, rows).to_table()
                rows, returned = kept.to_batches(), self._returned(kept, returning)
            if not keep:
                for _ in rows:
                    pass
            change.replace_rows(rows if keep else (), hidden)
        return returned

    def _returned(self, rows: pa.Table, returning: str) -> pa.Table:
        """The result of RETURNING. After a MERGE it may name ``merge_action``, which is not in ``*``."""
        alias, names = quote_name(self.statement.target.alias), [field.name for field in self.entry.schema.fields]
        query = f"SELECT {returning}\nFROM {ROWS} AS {alias}"
        if isinstance(self.statement, MergeStatement) and "merge_action" in returning.lower():
            columns = ", ".join(f"changed.{quote_name(name)}" for name in names)
            query = f"LATERAL (SELECT {returning}\nFROM (SELECT {columns}) AS {alias}) AS returned"
            query = f"FROM {ROWS} AS changed, LATERAL (SELECT {ACTION} AS merge_action) AS merged, {query}"
            query = f"SELECT returned.* {query}"
        else:
            rows = rows.select(names)
        return self.queries.run(query, relations={ROWS: rows}).keep()


class _PositionedRows:
    """The rows of a table with their files and positions, for one query."""

    def __init__(self, table: TransactionTable) -> None:
        self._table, self._paths = table, list[str]()
        self._schema = pa.schema([pa.field(FILE, pa.int32()), pa.field(ROW, pa.int64()), *table.schema])

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def _stored_schema(self) -> Schema:
        return stored_schema_of(self._table)

    def scan(self, columns: Sequence[str] | None = None, where: Predicate | None = None) -> RowSource:
        asked = list(self.schema.names if columns is None else columns)
        own = [name for name in asked if name not in (FILE, ROW)]
        scan = self._table.scan(own or self._table.schema.names[:1], where)
        return _PositionedScan(scan, pa.schema([self.schema.field(name) for name in asked]), self._paths)

    def hide(self, batch: pa.RecordBatch, hidden: HiddenRows, *, refuse_repeats: bool) -> None:
        """Adds the rows to ``hidden``. With ``refuse_repeats``, raises InputError if one is there already."""
        files, rows = batch[FILE].to_numpy(), batch[ROW].to_numpy()
        for file in set(files.tolist()):
            positions = rows[files == file]
            new, known = BitMap(positions), hidden.setdefault(self._paths[file], BitMap())
            if refuse_repeats and (len(new) < len(positions) or not known.isdisjoint(new)):
                raise InputError(
                    "several rows after FROM match one row of the table, and would each update it: make them one row, "
                    "by an aggregate or a condition"
                )
            known.update(new)


@dataclass
class _PositionedScan:
    """A scan whose batches also have the columns ``FILE``, an index in ``paths``, and ``ROW``."""

    scan: Scan
    schema: pa.Schema
    paths: list[str]

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        numbers: dict[str, int] = {}
        for batch, path, positions in rows_with_positions(self.scan):
            if path not in numbers:
                self.paths.append(path)
                numbers[path] = len(self.paths) - 1
            files = pa.repeat(pa.scalar(numbers[path], pa.int32()), batch.num_rows)
            extra = {FILE: files, ROW: pa.array(positions, pa.int64())}
            arrays = [extra[name] if name in extra else batch[name] for name in self.schema.names]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def explain(self) -> object:
        return self.scan.explain()


def fitted_rows(
    rows: pa.RecordBatchReader, names: Sequence[str], schema: Schema, find_casts: Mapping[str, FindCast]
) -> pa.RecordBatchReader:
    """The rows of a query as rows of a table: the query's first column is for ``names[0]``, and so on."""
    source = pa.schema([field.with_name(name) for field, name in zip(rows.schema, names, strict=True)])
    batches = (pa.RecordBatch.from_arrays(batch.columns, schema=source) for batch in rows)
    fitted = conform(pa.RecordBatchReader.from_batches(source, batches), schema, lossless_cast, find_casts=find_casts)
    return pa.RecordBatchReader.from_batches(schema.arrow, fitted)


def default_sql(field: Field, schema: Schema) -> str:
    """A column's default as a literal. Raises InputError for one that each row has its own of."""
    default = schema.write_defaults.get(field.name)
    if default is None:
        return "NULL"
    if isinstance(default, DefaultFunction):
        raise InputError(
            f"DEFAULT of column {field.name!r} is {default}, which differs in each row: leave the column out"
        )
    return typed_literal(from_json(default, field.arrow_type), field.arrow_type)


def _with_defaults(query: str, fields: Sequence[Field], schema: Schema) -> str:
    """The VALUES of an INSERT with the defaults of columns in place of the word DEFAULT."""
    if DEFAULT not in query.upper():
        return query
    tokens = tokenize(query, DUCKDB)
    if tokens[0].upper != "VALUES":
        return query
    spans, column = [], 0
    for before, token, after in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if token.depth == 1:
            column = 0 if before.text == "(" and before.depth == 0 else column + (before.text == ",")
            if token.upper == DEFAULT and before.text in "(," and after.text in "),":
                if column >= len(fields):
                    raise SchemaError(f"more values than columns: {', '.join(field.name for field in fields)}")
                spans.append((token.start, token.end, default_sql(fields[column], schema)))
    return replace_spans(query, spans)


def _is_column(text: str, side: str, name: str) -> bool:
    return text.strip().lower() in (f"{side}.{name}".lower(), f'{side}."{name}"'.lower())


def _reachable(clauses: Sequence[MergeClause], kind: str) -> list[MergeClause]:
    """The clauses of a kind that do something. Raises InputError where DO NOTHING keeps rows from a later one."""
    found = [clause for clause in clauses if clause.kind == kind]
    for index, clause in enumerate(found):
        if clause.action == "nothing":
            if clause.when is not None and index + 1 < len(found):
                raise InputError(
                    f"WHEN {kind.upper()} ... THEN DO NOTHING before other clauses: put the opposite of its condition "
                    "into those (merge has no such clause)"
                )
            return found[:index]
    return found


def _lists(query: str) -> list[list[str]]:
    """The texts of the values of VALUES, by row; none for another query."""
    reader, found = SqlReader(query, tokenize(query, DUCKDB), DUCKDB), list[list[str]]()
    if reader.take("VALUES"):
        while not found or reader.take(","):
            found.append(reader.items(lambda inner: inner.until(",")))
    return found if reader.is_done else []
