"""Records the reads and writes of every process, as numbers of rows: evidence for ``isolation``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dolmen_simulator.judge.effects import RewriteEffect, UpsertOnEffect
from dolmen_simulator.judge.ingesting import IngestEffect
from dolmen_simulator.judge.inserting import InsertEffect
from dolmen_simulator.judge.isolation import History, Read, RecordedTransaction, RowLifetime
from dolmen_simulator.judge.model import (
    AddEffect,
    AppendEffect,
    AppendIfAbsentEffect,
    ChangesEffect,
    Effect,
    Operation,
    OperationRun,
    OverwriteEffect,
    Row,
    UpsertEffect,
)


@dataclass
class CallEvidence:
    """The reads of a process during one of its calls.

    Args:
        operation: the call.
        session: name of the process.
        began_us, ended_us: when the call began and ended.
        acknowledged: whether the call returned.
        at: the version that it asked for.
        fresh: whether it asked for the newest version.
        runs: reads by run of the call's statements; a call that only reads has one entry, without a run.
    """

    operation: Operation
    session: str
    began_us: int
    ended_us: int | None = None
    acknowledged: bool = False
    at: int | None = None
    fresh: bool = False
    runs: list[tuple[OperationRun | None, list[Read]]] = field(default_factory=list)

    def begin_run(self, run: OperationRun | None) -> None:
        """Begins a run."""
        self.runs.append((run, []))

    def add_read(self, table: str, rows: Iterable[int], key: int | None = None, *, fresh: bool = False) -> None:
        """Adds a read of a table, or of one of its keys, from before the call wrote to that table.

        Args:
            table: name of the table.
            rows: numbers of all rows that the read returned.
            key: the key; None if the whole table was read.
            fresh: whether it was a read of the newest version.
        """
        self.runs[-1][1].append(Read(table, frozenset(rows), key))
        self.fresh = self.fresh or fresh


class Recording:
    """The evidence of a history."""

    def __init__(self) -> None:
        self._landings: list[tuple[int, str]] = []
        self._lives: dict[int, list[RowLifetime]] = {}
        self._there: dict[str, dict[int, int]] = {}
        self._witnesses: list[CallEvidence] = []
        self._sessions = Counter[str]()

    def session(self, who: str) -> str:
        """Names a new process of an actor."""
        self._sessions[who] += 1
        return f"{who}, process {self._sessions[who]}"

    def record_version(self, now_us: int, what: str) -> None:
        """Records the landing of a version."""
        self._landings.append((now_us, what))

    def record_rows(self, table: str, rows: Sequence[Row]) -> None:
        """Records the rows that a table name has since the newest version; none if the name is no longer in use."""
        version, before = len(self._landings), self._there.get(table, {})
        now = self._there[table] = {row.u: row.k for row in rows}
        gone = before.keys() - now.keys()
        for u in gone:
            lives = self._lives[u]  # another name of its table may have got it before
            last = max(index for index, life in enumerate(lives) if life.table == table)
            lives[last] = lives[last]._replace(removed_in=version)
        for u in now.keys() - before.keys():
            self._lives.setdefault(u, []).append(RowLifetime(table, now[u], version))

    def begin_call(self, operation: Operation, session: str, now_us: int) -> CallEvidence:
        """Begins a call of a process."""
        witness = CallEvidence(operation, session, now_us)
        self._witnesses.append(witness)
        return witness

    def history(self, runs: Mapping[int, OperationRun | None], applied: Mapping[str, int]) -> History:
        """The whole history.

        Args:
            runs: runs by version.
            applied: versions by applied id.
        """
        transactions = [
            each
            for witness in self._witnesses
            if not witness.operation.upkeep
            for each in _transactions(witness, runs, applied)
        ]
        return History(self._landings, self._lives, transactions)


def _transactions(
    witness: CallEvidence, runs: Mapping[int, OperationRun | None], applied: Mapping[str, int]
) -> Iterable[RecordedTransaction]:
    operation = witness.operation
    ended_us = witness.ended_us or 1 << 62
    committed = None if operation.landed_version is None else runs[operation.landed_version]
    for number, (run, reads) in enumerate(witness.runs):
        own = run is not None and committed is not None and run in committed.parts
        last = number == len(witness.runs) - 1
        writes = own or (last and committed is None)
        if not reads and not writes:
            continue
        yield RecordedTransaction(
            str(operation),
            witness.session,
            witness.began_us,
            ended_us,
            reads,
            _written(run.effects if run and writes else (), operation.landed_version, applied),
            operation.landed_version if own else None,
            witness.acknowledged,
            witness.at,
            witness.fresh,
        )


def _written(
    effects: Iterable[Effect], landed_version: int | None, applied: Mapping[str, int]
) -> dict[int, int | None]:
    """The expected version of each written row: that of the commit, or the one that applied its request."""
    written: dict[int, int | None] = {}
    for effect in effects:
        version = landed_version if effect.request is None else applied.get(effect.request)
        written.update(dict.fromkeys(_rows(effect), version))
    return written


def _rows(effect: Effect) -> list[int]:
    """The rows that a statement should write."""
    match effect:
        case AppendEffect() | UpsertEffect() | OverwriteEffect() | IngestEffect() | UpsertOnEffect() | RewriteEffect():
            return [row.u for row in effect.rows]
        case InsertEffect(rows=rows):
            return [row.u for row in rows]
        case AppendIfAbsentEffect(row=row):
            return [row.u]
        case AddEffect(u=u):
            return [u]
        case ChangesEffect(changes=changes):
            return [row.u for row, _ in changes]
    return []
