"""The machine transacts: statements over tables that are held open while others commit, and read-modify-write."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import consumes, multiple, precondition, rule

from dolmen import Transaction
from dolmen.errors import ConflictError, StaleWriterError, TableNotFoundError, VersionExpiredError
from machine import model
from machine.base import HANDLES, Ground, transactions
from machine.conditions import Condition, conditions
from machine.model import State, Statement, told


@dataclass
class Read:
    """What a transaction was told, after how many of its statements."""

    after: int
    name: str
    condition: Condition | None
    found: Counter[str]


@dataclass
class Open:
    """A transaction that has not ended."""

    transaction: Transaction
    base: int
    collected: int
    statements: list[tuple[str, Statement]] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    involved: set[str] = field(default_factory=set)
    overwritten: set[str] = field(default_factory=set)
    is_over: bool = False

    def sees(self, machine: Ground) -> State:
        """What its next statement should see."""
        return machine.at(self.base).after(self.statements, 0)


class Transacting(Ground):
    """Transactions that others overtake: they conflict, or are as if they had been alone."""

    @precondition(lambda self: self.state.tables)
    @rule(target=transactions, handle=HANDLES)
    def begin_transaction(self, handle: int) -> Open:
        """On the newest version."""
        return Open(self.handles[handle].transaction(), self.version, self.collected)

    @rule(target=transactions, opened=consumes(transactions), data=st.data())
    def state_something(self, opened: Open, data: st.DataObject) -> Any:
        """One more statement, or a read, on what it sees."""
        sees = opened.sees(self)
        if not sees.tables:
            return opened
        name = data.draw(st.sampled_from(sorted(sees.tables)), label="table")
        table = sees.tables[name]
        kind = data.draw(
            st.sampled_from(["read", "append", "upsert", "delete", "positions", "overwrite"]), label="statement"
        )
        opened.involved.add(name)
        try:
            target = opened.transaction.table(name)
            if kind == "read":
                condition = data.draw(st.none() | conditions(table.columns), label="where")
                found = told(target.scan(where=condition.where if condition else None).to_arrow())
                assert found == table.shown(table.matching(condition))
                opened.reads.append(Read(len(opened.statements), name, condition, found))
            elif kind in ("append", "overwrite") or (kind == "upsert" and not table.key):
                rows = self.some_rows(data, table)
                arrow = table.data([row.values for row in rows])
                if kind == "overwrite":
                    target.overwrite(arrow)
                    opened.overwritten.add(name)
                    opened.statements.append((name, model.overwrite(rows)))
                else:
                    target.append(arrow)
                    opened.statements.append((name, model.append(rows)))
            elif kind == "upsert":
                rows = self.some_rows(data, table, not_null=table.key)
                target.upsert(table.data([row.values for row in rows]))
                opened.statements.append((name, model.upsert(rows, table.key)))
            else:
                condition = data.draw(conditions(table.columns), label="where")
                matching = table.matching(condition)
                target.delete(condition.where, mode="positions" if kind == "positions" else "tombstone")
                by_rows = model.delete_rows(matching)
                opened.statements.append((name, by_rows if kind == "positions" else model.delete(condition)))
        except VersionExpiredError:
            assert opened.base < self.horizon
            return multiple()
        return opened

    @rule(opened=consumes(transactions))
    def end_transaction(self, opened: Open) -> None:
        """It lands whole on whatever is there by then, if all that it read still holds; or it conflicts."""
        now = self.state
        base = self.at(opened.base)
        try:
            commit = opened.transaction.commit()
        except StaleWriterError:
            assert self.collected > opened.collected
        except TableNotFoundError:
            assert any(name not in now.tables for name in opened.involved)
        except VersionExpiredError:
            assert opened.base < self.horizon
        except ConflictError:
            assert any(_is_other(base, now, name) for name in opened.involved), "nobody touched what it is about"
        else:
            for name, _ in opened.statements:
                assert base.tables[name].uid == now.tables[name].uid, "that table is another one now"
            for name in opened.overwritten:
                assert base.tables[name].numbers() == now.tables[name].numbers(), "rows are gone that it had not seen"
            for read in opened.reads if commit.operation != "nothing" else ():  # who only read saw one version: fine
                seen = now.after(opened.statements[: read.after], 0).tables[read.name]
                assert read.found == seen.shown(seen.matching(read.condition)), "it was told what no longer held"
            self.landed(commit, now.after(opened.statements, self.version + 1))

    @precondition(lambda self: self.state.tables)
    @rule(handle=HANDLES, data=st.data(), is_overtaken=st.booleans())
    def run(self, handle: int, data: st.DataObject, is_overtaken: bool) -> None:
        """Reads rows, deletes them and adds them twice (many: once), as one; also when somebody comes in between."""
        name, table = self.some_table(data)
        condition = data.draw(conditions(table.columns), label="where")
        theirs = self.some_rows(data, table) if is_overtaken else []
        calls: list[int] = []

        def twice(tx: Transaction) -> Counter[str]:
            calls.append(1)
            target = tx.table(name)
            found = target.scan(where=condition.where).to_arrow()
            target.delete(condition.where)
            for _ in range(_times(found.num_rows)):
                target.append(found)
            if theirs and len(calls) == 1:
                other = self.handles[1 - handle].table(name)
                self.did(other.append(table.data([row.values for row in theirs])), (name, model.append(theirs)))
            return told(found)

        found = self.handles[handle].run(twice)
        matching = self.state.tables[name].matching(condition)
        assert found == table.shown(matching), "it was told what no longer held"
        self.handles[handle].refresh()
        again = self.new_rows([row.values for row in matching * _times(len(matching))])
        statements = [(name, model.delete(condition)), (name, model.append(again))]
        commits = [c for c in self.handles[handle].history(1) if c.version > self.version]
        if commits:
            self.landed(commits[0], self.state.after(statements, self.version + 1))
        else:
            assert not matching


def _times(rows: int) -> int:
    return 2 if rows < 20 else 1


def _is_other(base: State, now: State, name: str) -> bool:
    then, there = base.tables.get(name), now.tables.get(name)
    if then is None or there is None:
        return then is not there
    return then.uid != there.uid or then.touched != there.touched
