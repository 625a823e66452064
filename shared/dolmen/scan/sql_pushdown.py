"""Which conditions of a query hold for every row it needs of each table it names.

Found with sqlglot: its optimizer qualifies every column, and conditions are then followed from WHERE and ON down to
the tables, through derived tables, CTEs used once, and set operations. The query itself is never rewritten: a
condition found here only spares rows that the query would drop anyway, so whatever is not understood is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import Scope, traverse_scope

_DIALECT = "duckdb"

_CHANGES = (
    exp.AggFunc,
    exp.Anonymous,
    exp.CurrentDate,
    exp.CurrentDatetime,
    exp.CurrentTime,
    exp.CurrentTimestamp,
    exp.Parameter,
    exp.Placeholder,
    exp.Query,
    exp.Rand,
    exp.Window,
)
"""What a condition may not contain: it may have another value elsewhere, or at another time."""

_FAILURES = (SqlglotError, RecursionError, AssertionError, AttributeError, KeyError, TypeError, ValueError)
"""What sqlglot raises over queries that it does not understand, by intention or not."""


@dataclass(frozen=True)
class Reference:
    """A place in the query where a table is named: ``query[start:end]``."""

    table: str
    start: int
    end: int
    aliased: bool


def references(query: str) -> list[Reference] | None:
    """Where a query names tables, in order; None if it can't be told."""
    try:
        tree = sqlglot.parse_one(query, dialect=_DIALECT)
        scopes = traverse_scope(tree)
    except _FAILURES:
        return None
    seen = {id(table) for scope in scopes for table in scope.tables}
    found = {
        _reference(source)
        for scope in scopes
        for source in scope.sources.values()
        if isinstance(source, exp.Table) and _is_plain(source)
    }
    if None in found or any(id(table) not in seen for table in tree.find_all(exp.Table)):
        return None
    places = sorted((place for place in found if place is not None), key=lambda place: place.start)
    if any(query[place.start : place.end].strip('"').lower() != place.table for place in places):
        return None
    return places


def conditions(query: str, columns: Mapping[str, Mapping[str, str]]) -> dict[int, list[str]]:
    """Conditions by the start of the reference they hold for, as SQL over the table's columns.

    Args:
        columns: name and SQL type of each column, by table.
    """
    try:
        tree = sqlglot.parse_one(query, dialect=_DIALECT)
        scopes = traverse_scope(qualify(tree, schema=dict(columns), dialect=_DIALECT, quote_identifiers=True))
    except _FAILURES:
        return {}
    return _Follower(scopes).follow()


def _is_plain(table: exp.Table) -> bool:
    return isinstance(table.this, exp.Identifier) and not table.args.get("db")


def _reference(table: exp.Table) -> Reference | None:
    meta = table.this.meta
    if "start" not in meta or "end" not in meta:
        return None
    return Reference(table.name.lower(), meta["start"], meta["end"] + 1, bool(table.alias))


class _Follower:
    """Goes from the outermost query inwards and hands conditions on."""

    def __init__(self, scopes: list[Scope]) -> None:
        self._scopes = scopes
        self._by_expression = {id(scope.expression): scope for scope in scopes}
        self._inherited: dict[int, list[exp.Expression]] = {id(scope): [] for scope in scopes}
        self._uses: dict[int, int] = {}
        for scope in scopes:
            for source in scope.sources.values():
                self._uses[id(source)] = self._uses.get(id(source), 0) + 1
        self._found: dict[int, list[str]] = {}

    def follow(self) -> dict[int, list[str]]:
        for scope in reversed(self._scopes):  # sqlglot lists inner scopes before those that use them
            if isinstance(scope.expression, exp.Select):
                self._select(scope)
            elif isinstance(scope.expression, exp.SetOperation):
                self._set_operation(scope)
        return self._found

    def _select(self, scope: Scope) -> None:
        select = scope.expression
        joins: list[exp.Join] = select.args.get("joins") or []
        if any(not _is_ordinary(join) for join in joins) or select.args.get("sample"):
            return
        where = select.args.get("where")
        kept = [*_conjuncts(where.this if where else None), *self._through(scope)]
        for condition in kept:
            self._hand_on(scope, condition, _null_supplied(select, joins))
        for join in joins:
            if join.side in ("", "LEFT"):  # ON decides which rows of the joined side there are
                for condition in _conjuncts(join.args.get("on")):
                    if exp.column_table_names(condition) == {join.alias_or_name}:
                        self._hand_on(scope, condition, frozenset())

    def _through(self, scope: Scope) -> Iterator[exp.Expression]:
        """Conditions on a derived table's columns as conditions on what it selects them from."""
        select = scope.expression
        if any(select.args.get(clause) for clause in ("group", "having", "limit", "offset", "qualify", "windows")):
            return
        distinct = select.args.get("distinct")
        if distinct and distinct.args.get("on"):
            return
        if any(item.find(exp.AggFunc, exp.Window, exp.UDTF, exp.Anonymous) for item in select.selects):
            return
        outputs = {item.alias_or_name: item.unalias() for item in select.selects}
        for condition in self._inherited[id(scope)]:
            if all(isinstance(outputs.get(column.name), exp.Column) for column in condition.find_all(exp.Column)):
                yield condition.transform(
                    lambda node: outputs[node.name].copy() if isinstance(node, exp.Column) else node
                )

    def _set_operation(self, scope: Scope) -> None:
        operation = scope.expression
        if operation.args.get("by_name") or any(operation.args.get(clause) for clause in ("limit", "offset")):
            return
        names = operation.named_selects
        branches = [self._by_expression.get(id(side.unnest())) for side in (operation.this, operation.expression)]
        for branch in branches:
            if branch is None:
                continue
            own = branch.expression.named_selects
            if len(own) != len(names) or branch.expression.args.get("with_"):
                continue
            renamed = dict(zip(names, own, strict=True))
            for condition in self._inherited[id(scope)]:
                if {column.name for column in condition.find_all(exp.Column)} <= renamed.keys():
                    self._inherited[id(branch)].append(_renamed(condition, renamed))

    def _hand_on(self, scope: Scope, condition: exp.Expression, null_supplied: frozenset[str]) -> None:
        """Gives a condition to the one source it is about, if it is about one."""
        names = exp.column_table_names(condition)
        if len(names) != 1 or isinstance(condition, _CHANGES) or condition.find(*_CHANGES):
            return
        (name,) = names
        if name in null_supplied or name not in scope.selected_sources:
            return
        node, source = scope.selected_sources[name]
        if node.args.get("sample") or node.args.get("pivots") or node.args.get("alias_column_names"):
            return
        if isinstance(source, Scope):
            if self._uses.get(id(source), 0) == 1 and not _is_recursive(source) and not _column_aliases(node):
                self._inherited[id(source)].append(condition)
        elif _is_plain(source) and not _column_aliases(node) and (place := _reference(source)):
            self._found.setdefault(place.start, []).append(_text(condition))


def _conjuncts(condition: exp.Expression | None) -> list[exp.Expression]:
    if condition is None:
        return []
    condition = condition.unnest()
    if isinstance(condition, exp.And):
        return [*_conjuncts(condition.left), *_conjuncts(condition.right)]
    return [condition]


def _is_ordinary(join: exp.Join) -> bool:
    """A join that pairs rows by its condition alone: not ASOF, POSITIONAL, SEMI, ANTI, NATURAL, LATERAL."""
    return (
        join.side in ("", "LEFT", "RIGHT", "FULL")
        and join.kind in ("", "INNER", "OUTER", "CROSS")
        and not join.method
        and not isinstance(join.this, (exp.Lateral, exp.Unnest))
    )


def _null_supplied(select: exp.Select, joins: list[exp.Join]) -> frozenset[str]:
    """Sources for which an outer join may put NULLs: a condition after the join says nothing of their rows."""
    source = select.args.get("from_") or select.args.get("from")
    before = {source.alias_or_name} if source else set()
    supplied: set[str] = set()
    for join in joins:
        if join.side in ("RIGHT", "FULL"):
            supplied |= before
        if join.side in ("LEFT", "FULL"):
            supplied.add(join.alias_or_name)
        before.add(join.alias_or_name)
    return frozenset(supplied)


def _is_recursive(scope: Scope) -> bool:
    with_ = scope.expression.find_ancestor(exp.With)
    return bool(with_ and with_.recursive)


def _column_aliases(node: exp.Expression) -> bool:
    alias = node.args.get("alias")
    return bool(alias and alias.args.get("columns"))


def _renamed(condition: exp.Expression, names: Mapping[str, str]) -> exp.Expression:
    return condition.transform(
        lambda node: exp.column(names[node.name], quoted=True) if isinstance(node, exp.Column) else node
    )


def _text(condition: exp.Expression) -> str:
    """The condition over bare column names."""
    bare = condition.transform(lambda node: exp.column(node.this.copy()) if isinstance(node, exp.Column) else node)
    return str(bare.sql(_DIALECT))
