"""Handles a batch of requests as functions do, and checks the outcome of each request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from dolmen.api.database import Database
from dolmen.commit.head import Context
from dolmen.errors import InputError
from dolmen.transactions.transaction import Transaction, unit_of
from dolmen.transactions.unit_of_work import Commit, UnitOfWork
from dolmen_simulator.judge.erasing import SUBJECT
from dolmen_simulator.judge.model import Effect, OperationRun
from dolmen_simulator.judge.never import Never, ViolationError, unexpected_error
from dolmen_simulator.world.process import EXPECTED, Process

Effects: TypeAlias = Callable[[str], Iterable[Effect]]
"""Returns the effects of a request, by its id."""


@dataclass(frozen=True)
class Answer:
    """A function's answer to a request. Without version and error, the request is finished and had no effect.

    Args:
        id: the applied id.
        digest: digest of its content.
        version: version that applied it, now or before.
        error: reason why it must be delivered again.
    """

    id: str
    digest: str
    version: int | None = None
    error: Exception | None = None


def serve(
    process: Process,
    kind: str,
    effects: Effects,
    tables: Iterable[str],
    call: Callable[[Database], tuple[Sequence[Answer], Commit | None]],
) -> set[str]:
    """Handles a batch, and checks the answer to each of its requests.

    Args:
        process: the process.
        kind: description for people.
        effects: effects of each request, once it is bound.
        tables: names of their tables, which may be dropped meanwhile.
        call: handles the batch with the database that it gets.

    Returns:
        The ids of the acknowledged requests.

    Raises:
        ViolationError: MISREPORTED, or a violation found by the ledger.
    """
    done: set[str] = set()

    def judged() -> Commit | None:
        database = _RecordingDatabase(process, effects, tuple(tables))
        answers, commit = call(database)
        run = database.last
        failed = next((answer.error for answer in answers if answer.error and _is_bound(run, answer.id)), None)
        if failed is not None:  # the commit itself failed, with all its requests
            raise failed
        for answer in answers:
            _check(process, run, answer)
            if answer.error is None:
                done.add(answer.id)
        return commit

    process.write(kind, [], judged, reads=True)
    return done


def _is_bound(run: OperationRun, request: str) -> bool:
    """Whether the failure of a request is that of the commit, which was to apply it, or to reject it.

    A rejection has an id of its own. Once it has landed, what failed is the report, which is written after it.
    """
    operation = run.operation
    rejects = any(id_.startswith(f"{request}#") for id_ in operation.digests)
    return request in operation.digests or (rejects and operation.landed_version is None)


def _check(process: Process, run: OperationRun, answer: Answer) -> None:
    ledger, counts = process.ledger, process.network.counts
    applied = ledger.applied.get(answer.id)
    if answer.error is None:
        if answer.version is not None and (applied != answer.version or ledger.digests[answer.id] != answer.digest):
            raise ViolationError(
                Never.MISREPORTED,
                f"{run.operation}: {answer.id} was said to be applied by version {answer.version}; it is {applied}",
            )
        return
    counts["requests failed alone"] += 1
    if applied is not None and applied == run.operation.landed_version and ledger.digests[answer.id] == answer.digest:
        raise ViolationError(Never.MISREPORTED, f"{run.operation} applied {answer.id} and failed it: {answer.error!r}")
    if _is_of_nobody(process, run, answer.error):
        counts["subjects of no table"] += 1
        return
    if not isinstance(answer.error, EXPECTED) or not _has_reason(process, run, answer):
        raise unexpected_error(f"{run.operation} failed {answer.id} without a reason", answer.error)


def _has_reason(process: Process, run: OperationRun, answer: Answer) -> bool:
    assert answer.error is not None
    if process.ledger.digests.get(answer.id, answer.digest) != answer.digest:
        return True  # its content was forged, which this error reports
    return process.ledger.has_reason(run.operation, run, answer.error)


def _is_of_nobody(process: Process, run: OperationRun, error: Exception) -> bool:
    """Whether a subject could not be forgotten because no table had a subject column."""
    if type(error) is not InputError or "subject" not in str(error) or run.base is None:
        return False
    states = process.ledger.states[run.operation.known : run.base + 1]
    return any(not any(SUBJECT in table.settings for table in state.values()) for state in states)


class _RecordingDatabase(Database):
    """A process's database that records each transaction as a run, with its requests.

    Production code makes a batch again when its base has changed; each time is a run on another version.
    """

    def __init__(self, process: Process, effects: Effects, tables: tuple[str, ...]) -> None:
        self._context = process.context
        self._process, self._effects, self._tables = process, effects, tables
        self._run: OperationRun | None = None

    @property
    def last(self) -> OperationRun:
        """The last run."""
        assert self._run is not None
        return self._run

    def transaction(self, operation: str = "transaction", **_note: Any) -> Transaction:
        if self._run and self._run.effects:
            self._process.network.counts["batches made anew"] += 1
        run = self._run = self._process.begin_run()
        run.operation.about, run.operation.digests = self._tables, {}
        run.base = run.operation.known
        counts = self._process.network.counts
        transaction = _RecordingTransaction(self._context, operation, run, self._effects, counts)
        run.base = unit_of(transaction).base.version
        return transaction


class _RecordingTransaction(Transaction):
    """A transaction that records its effects and its base version in its run."""

    def __init__(
        self, context: Context, operation: str, run: OperationRun, effects: Effects, counts: Counter[str]
    ) -> None:
        super().__init__(UnitOfWork(context, operation, newest=True))
        self._run, self._effects, self._counts = run, effects, counts

    def bind(self, request: str, digest: str) -> None:
        super().bind(request, digest)
        self._run.effects += self._effects(request)
        self._run.operation.digests[request] = digest

    def commit(self) -> Commit:
        unit = unit_of(self)
        self._run.base = unit.base.version
        created = unit.manifest.tables.keys() - unit.base.tables.keys()
        commit = super().commit()
        self._counts["tables created for files"] += len(created)
        return commit
