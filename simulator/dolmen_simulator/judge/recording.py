"""What every process did and saw in a history, by the numbers of rows alone: evidence for ``isolation``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dolmen_simulator.judge.effects import IngestEffect, RewriteEffect, UpsertOnEffect
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
    """What a process saw during one of its calls.

    Args:
        session: the process.
        runs: what it saw, run by run of the call's statements; of a call that only reads there is one, without a run.
        at: the version that it asked for.
        fresh: it asked for the newest version.
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
        """A run begins."""
        self.runs.append((run, []))

    def add_read(self, table: str, rows: Iterable[int], key: int | None = None, *, fresh: bool = False) -> None:
        """A read returned all these rows of a table, or of one of its keys; before it writes to that table.

        Args:
            fresh: it was a read of the newest version.
        """
        self.runs[-1][1].append(Read(table, frozenset(rows), key))
        self.fresh = self.fresh or fresh


class Recording:
    """Collects evidence."""

    def __init__(self) -> None:
        self._landings: list[tuple[int, str]] = []
        self._lives: dict[int, list[RowLifetime]] = {}
        self._there: dict[str, dict[int, int]] = {}
        self._witnesses: list[CallEvidence] = []
        self._sessions = Counter[str]()

    def session(self, who: str) -> str:
        """A name for a new process of that actor."""
        self._sessions[who] += 1
        return f"{who}, process {self._sessions[who]}"

    def record_version(self, now_us: int, what: str) -> None:
        """A version has landed."""
        self._landings.append((now_us, what))

    def record_rows(self, table: str, rows: Sequence[Row]) -> None:
        """The version that has landed last changed what stands under a name: these rows now; none once it is dropped,
        or has another name."""
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
        """A process begins a call."""
        witness = CallEvidence(operation, session, now_us)
        self._witnesses.append(witness)
        return witness

    def history(self, runs: Mapping[int, OperationRun | None], applied: Mapping[str, int]) -> History:
        """All of it.

        Args:
            runs: by version, the run that it is.
            applied: versions by the ids that they applied.
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
        own = run is not None and run is committed
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
    """By row, the version that it should be of: that of the commit, or of the one that applied its request."""
    written: dict[int, int | None] = {}
    for effect in effects:
        version = landed_version if effect.request is None else applied.get(effect.request)
        written.update(dict.fromkeys(_rows(effect), version))
    return written


def _rows(effect: Effect) -> list[int]:
    """The rows that a statement writes, if it writes what it says."""
    match effect:
        case AppendEffect() | UpsertEffect() | OverwriteEffect() | IngestEffect() | UpsertOnEffect() | RewriteEffect():
            return [row.u for row in effect.rows]
        case AppendIfAbsentEffect(row=row):
            return [row.u]
        case AddEffect(u=u):
            return [u]
        case ChangesEffect(changes=changes):
            return [row.u for row, _ in changes]
    return []
