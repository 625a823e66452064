"""The machine writes: every statement as a commit of its own, by either handle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import multiple, precondition, rule

import dolmen
from dolmen import Commit
from dolmen.errors import AppliedIdError, ConflictError, DuplicateKeyError, RowError
from machine import columns, model
from machine.base import HANDLES, Ground, requests
from machine.conditions import conditions
from machine.model import TableState


@dataclass(frozen=True)
class Request:
    """A request that was applied under an id: how to send it again, and where it went."""

    id: str
    name: str
    uid: int
    version: int
    send: Callable[[dolmen.Table], Commit]


FILES = 6

FORMS: tuple[Callable[[pa.Table], Any], ...] = (
    lambda data: data,
    lambda data: data.to_reader(),
    lambda data: data.select(data.column_names[::-1]),
    lambda data: data.to_batches(),
)
"""Ways to hand rows over."""


class Writing(Ground):
    """Appends, upserts, updates, merges, deletes of all kinds, overwrites, each with or without a request's id."""

    @precondition(lambda self: self.state.tables)
    @rule(target=requests, handle=HANDLES, data=st.data(), form=st.sampled_from(FORMS), is_request=st.booleans())
    def append(self, handle: int, data: st.DataObject, form: Callable[[pa.Table], Any], is_request: bool) -> Any:
        """Rows with any keys, NULL and twice the same included."""
        name, table = self.some_table(data)
        rows = self.some_rows(data, table)
        arrow = table.data([row.values for row in rows])

        def send(target: dolmen.Table, request: str | None = None) -> Commit:
            return target.append(form(arrow) if rows else arrow, request=request)

        return self._sent(handle, name, table, send, model.append(rows), is_request)

    @precondition(lambda self: self.state.tables)
    @rule(data=st.data())
    def load(self, data: st.DataObject) -> None:
        """Small files, by both handles in turn: what compaction is there for."""
        name, table = self.some_table(data)
        rows = self.new_rows(data.draw(columns.rows(table.columns, most=18), label="rows"))
        for place in range(FILES):
            part = rows[place::FILES]
            arrow = table.data([row.values for row in part])
            commit = self.unless_new(place % 2, name, partial(dolmen.Table.append, data=arrow))
            self.did(commit, (name, model.append(part)))

    @precondition(lambda self: self.state.tables)
    @rule(target=requests, handle=HANDLES, data=st.data(), is_request=st.booleans())
    def upsert(self, handle: int, data: st.DataObject, is_request: bool) -> Any:
        """Rows by the primary key, or by any columns that may be one."""
        name, table = self.some_table(data)
        on = self._some_key(data, table)
        if not on:
            return multiple()
        rows = self.some_rows(data, table, not_null=on)
        arrow = table.data([row.values for row in rows])

        def send(target: dolmen.Table, request: str | None = None) -> Commit:
            return target.upsert(arrow, None if on == table.key else list(on), request=request)

        return self._sent(handle, name, table, send, model.upsert(rows, on), is_request)

    @precondition(lambda self: any(table.key for table in self.state.tables.values()))
    @rule(handle=HANDLES, data=st.data())
    def upsert_null(self, handle: int, data: st.DataObject) -> None:
        """NULL is no key: nothing is changed."""
        name = data.draw(st.sampled_from(sorted(n for n, t in self.state.tables.items() if t.key)), label="table")
        table = self.state.tables[name]
        with pytest.raises(RowError):
            self.unless_new(handle, name, lambda there: there.upsert(table.data([(None,) * len(table.columns)])))
        assert self.observer.refresh() == self.version

    @precondition(lambda self: self.state.tables)
    @rule(target=requests, handle=HANDLES, data=st.data(), is_request=st.booleans())
    def delete(self, handle: int, data: st.DataObject, is_request: bool) -> Any:
        """By a predicate that is looked up whenever somebody reads."""
        name, table = self.some_table(data)
        condition = data.draw(conditions(table.columns), label="where")

        def send(target: dolmen.Table, request: str | None = None) -> Commit:
            return target.delete(condition.where, request=request)

        return self._sent(handle, name, table, send, model.delete(condition), is_request)

    @precondition(lambda self: self.state.tables)
    @rule(target=requests, handle=HANDLES, data=st.data(), is_request=st.booleans())
    def delete_positions(self, handle: int, data: st.DataObject, is_request: bool) -> Any:
        """By what matches now; the count is exact."""
        name, table = self.some_table(data)
        condition = data.draw(conditions(table.columns), label="where")
        matching = table.matching(condition)

        def send(target: dolmen.Table, request: str | None = None) -> Commit:
            commit = target.delete(condition.where, mode="positions", request=request)
            if not commit.already:
                assert commit.rows == len(matching)
            return commit

        return self._sent(handle, name, table, send, model.delete(condition), is_request)

    @precondition(lambda self: self.state.tables)
    @rule(target=requests, handle=HANDLES, data=st.data(), is_request=st.booleans())
    def delete_keys(self, handle: int, data: st.DataObject, is_request: bool) -> Any:
        """By keys that rows have, and by others."""
        name, table = self.some_table(data)
        on = self._some_key(data, table)
        if not on:
            return multiple()
        fresh = st.tuples(*(table.column(column).kind.values for column in on))
        known = sorted({key for row in table.rows if None not in (key := table.key_of(row, on))}, key=repr)
        keys = data.draw(st.lists(st.sampled_from(known) | fresh if known else fresh, max_size=3), label="keys")
        arrays = (
            [table.column(column).array(list(cells)) for column, cells in zip(on, zip(*keys, strict=True), strict=True)]
            if keys
            else []
        )
        arrow = pa.table(arrays, names=list(on)) if keys else []

        def send(target: dolmen.Table, request: str | None = None) -> Commit:
            return target.delete(keys=arrow, on=None if on == table.key else list(on), request=request)

        return self._sent(handle, name, table, send, model.delete_keys(keys, on), is_request)

    @precondition(lambda self: self.state.tables)
    @rule(target=requests, handle=HANDLES, data=st.data(), is_request=st.booleans())
    def update(self, handle: int, data: st.DataObject, is_request: bool) -> Any:
        """One column of what matches now gets another value."""
        name, table = self.some_table(data)
        able = [column for column in table.columns if column.name not in table.key]
        if not able:
            return multiple()
        condition = data.draw(conditions(table.columns), label="where")
        column = data.draw(st.sampled_from(able), label="column")
        value = data.draw(st.none() | column.kind.values, label="value")
        matching = table.matching(condition)
        place = table.columns.index(column)
        changed = self.new_rows([(*row.values[:place], value, *row.values[place + 1 :]) for row in matching])
        given = None if value is None else column.kind.python(value)

        def send(target: dolmen.Table, request: str | None = None) -> Commit:
            commit = target.update({column.name: given}, condition.where, request=request)
            if not commit.already:
                assert (commit.counts.rows_added, commit.counts.rows_deleted) == (len(matching), len(matching))
            return commit

        return self._sent(handle, name, table, send, model.substitute(matching, changed), is_request)

    @precondition(lambda self: self.state.tables)
    @rule(target=requests, handle=HANDLES, data=st.data(), is_request=st.booleans())
    def merge(self, handle: int, data: st.DataObject, is_request: bool) -> Any:
        """Rows that have a key get the values of its source row, if they keep their primary key; others are added."""
        name, table = self.some_table(data)
        on = self._some_key(data, table)
        if not on:
            return multiple()
        by_key = {table.key_of(row, on): row for row in self.some_rows(data, table, not_null=on)}
        rows = list(by_key.values())
        arrow = table.data([row.values for row in rows])
        matching = [row for row in table.rows if table.key_of(row, on) in by_key]
        met = {table.key_of(row, on) for row in matching}
        when_matched: Any = "update" if set(table.key) <= set(on) else None
        matching = matching if when_matched else []
        changed = self.new_rows([by_key[table.key_of(row, on)].values for row in matching])
        added = [row for key, row in by_key.items() if key not in met]
        changed += added

        def send(target: dolmen.Table, request: str | None = None) -> Commit:
            return target.merge(arrow, list(on), when_matched, request=request)

        upserts = sorted(on) == sorted(table.key)
        keys = [table.key_of(row, table.key) for row in added] if table.key and not upserts else []
        there = {table.key_of(row, table.key) for row in table.rows} if keys else set()
        if len(set(keys)) < len(keys) or any(None in key or key in there for key in keys):
            with pytest.raises((DuplicateKeyError, RowError)):
                self.unless_new(handle, name, send)
            assert self.observer.refresh() == self.version
            return multiple()
        statement = model.upsert(rows, on) if upserts else model.substitute(matching, changed)
        return self._sent(handle, name, table, send, statement, is_request)

    @precondition(lambda self: self.state.tables)
    @rule(target=requests, handle=HANDLES, data=st.data(), is_request=st.booleans(), force=st.booleans())
    def overwrite(self, handle: int, data: st.DataObject, is_request: bool, force: bool) -> Any:
        """All rows are others now, unless somebody changed the table since this handle last looked."""
        name, table = self.some_table(data)
        rows = self.some_rows(data, table)
        arrow = table.data([row.values for row in rows])
        database = self.handles[handle]
        seen = self.at(database.version).tables.get(name) if database.version else None

        def send(target: dolmen.Table, request: str | None = None) -> Commit:
            return target.overwrite(arrow, force=force, request=request)

        try:
            sent = self._sent(handle, name, table, send, model.overwrite(rows), is_request)
        except ConflictError:
            assert seen is not None
            assert seen.touched < table.touched, "nobody changed it"
            database.refresh()
            return multiple()
        if seen is not None and seen.uid == table.uid and not force:
            assert seen.numbers() == table.numbers(), "rows are gone that this handle had not seen"
        return sent

    @precondition(lambda self: self.state.tables)
    @rule(data=st.data(), handle=HANDLES, request=requests)
    def deliver_again(self, data: st.DataObject, handle: int, request: Request) -> None:
        """The same request changes nothing, whoever sends it and whatever has happened since."""
        table = self.state.tables.get(request.name)
        if table is None or table.uid != request.uid:
            return
        commit = self.unless_new(handle, request.name, request.send)
        assert commit.already == {request.id: request.version}
        self.landed(commit, self.state)

    @precondition(lambda self: self.state.tables)
    @rule(data=st.data(), handle=HANDLES, request=requests)
    def misuse(self, data: st.DataObject, handle: int, request: Request) -> None:
        """Another request under the same id is an error, and does nothing."""
        name, table = self.some_table(data)
        column = f'"{table.columns[0].name}"'
        none = f"{column} IS NULL AND {column} IS NOT NULL AND {column} IS NULL"  # no request says that
        with pytest.raises(AppliedIdError):
            self.unless_new(handle, name, lambda there: there.delete(none, request=request.id))
        assert self.observer.refresh() == self.version

    def _some_key(self, data: st.DataObject, table: TableState) -> tuple[str, ...]:
        able = [column.name for column in table.columns if column.kind.is_key]
        choices = [table.key] if table.key else []
        if able:
            choices.append((data.draw(st.sampled_from(able), label="on"),))
        return data.draw(st.sampled_from(choices), label="key") if choices else ()

    def _sent(
        self,
        handle: int,
        name: str,
        table: TableState,
        send: Callable[..., Commit],
        statement: model.Statement,
        is_request: bool,
    ) -> Any:
        id_ = f"r{self.version}" if is_request else None
        commit = self.unless_new(handle, name, lambda there: send(there, request=id_))
        assert not commit.already
        self.did(commit, (name, statement))
        if id_ is None:
            return multiple()
        assert commit.version == self.version
        return Request(id_, name, table.uid, self.version, lambda target: send(target, request=id_))
