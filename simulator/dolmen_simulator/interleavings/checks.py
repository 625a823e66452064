"""What must hold after an execution, judged by plain Python rows and a reader whom nothing disturbs."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import groupby, permutations
from typing import Any, TypeAlias

import pyarrow as pa

from dolmen.context import Context
from dolmen.database import Database
from dolmen.errors import CorruptionError, Error, StoreUnavailableError
from dolmen.format.layout import POINTER, memory_name
from dolmen.maintenance.compact.compaction import compact
from dolmen.maintenance.resolve.resolution import resolve
from dolmen.maintenance.verify.verification import verify
from dolmen.runtime import Runtime
from dolmen.store.memory import MemoryBucket, MemoryObject, MemoryStore
from dolmen_simulator.interleavings.execution import Execution, Task
from dolmen_simulator.interleavings.steps import Outcome
from dolmen_simulator.judge.never import Never, ViolationError, readable, unexpected
from dolmen_simulator.world.fates import Fate, Verb

Row: TypeAlias = tuple[Any, ...]
Rows: TypeAlias = dict[str, list[Row]]
"""Sorted rows by table."""

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("t", pa.timestamp("us"))])
"""Of every table: ``k`` is the primary key, and rows may expire by ``t``."""


_MEMORY = memory_name("")

_Order: TypeAlias = tuple[tuple[int, ...], list[Rows]]
"""Which of the two, in which order, and the rows before, between and after."""


def arrow(rows: Sequence[Row]) -> pa.Table:
    """Rows as production code takes them."""
    return pa.table([pa.array(column) for column in zip(*rows, strict=True)], names=SCHEMA.names).cast(SCHEMA)


def rows_of(data: pa.Table) -> list[Row]:
    """Rows as production code gives them, sorted; times in microseconds."""
    columns = [data["k"], data["v"], data["t"].cast(pa.int64())]
    return sorted(zip(*(column.to_pylist() for column in columns), strict=True), key=repr)


@dataclass
class Truth:
    """What tables hold, in plain Python.

    Args:
        applied: ids of requests.
        memory: what else tasks must know of each other.
    """

    tables: Rows
    applied: set[str] = field(default_factory=set)
    memory: dict[Any, Any] = field(default_factory=dict)

    @property
    def rows(self) -> Rows:
        """As a reader sees them."""
        return {name: sorted(rows, key=repr) for name, rows in self.tables.items()}


@dataclass(frozen=True)
class Part:
    """One of the two.

    Args:
        name: what it does, for people.
        task: production code.
        effect: what it does to the rows, if nobody disturbs it; what it returns is what the caller must be told, and
            what it raises (an Error) he must be told as well. None as a result: anything.
        shown: what of the task's result is compared.
        may: errors that it may be refused with, and whether this execution is a reason.
    """

    name: str
    task: Task
    effect: Callable[[Truth], Any]
    shown: Callable[[Any], Any] = lambda value: value
    may: dict[type[Error], Callable[[Execution, Outcome], bool]] = field(default_factory=dict)


@dataclass(frozen=True)
class Pair:
    """Two calls on one database.

    Args:
        name: of the pair.
        prepare: makes the database they begin with.
        parts: what the two do.
        hours: how long after that they begin.
        events: both apply requests with ids.
        stalls: those of the two that may also stand still for hours at each of their requests.
        quick: those of the two whose requests faults strike in quick mode: of two calls that only differ in their rows
            one, and one where there are very many interleavings.
        quick_fates: what becomes of puts of the pointer in quick mode, where interleavings are so many that no other
            faults are tried there, or none at all; None: all faults.
        outages: if given, what goes wrong are outages of the store that refuse so many requests of one of the two.
    """

    name: str
    prepare: Callable[[Database], None]
    parts: tuple[Part, Part]
    hours: float = 0.0
    events: bool = False
    stalls: tuple[int, ...] = ()
    quick: tuple[int, ...] = (0, 1)
    quick_fates: tuple[Fate, ...] | None = None
    outages: tuple[int, ...] = ()


@dataclass(frozen=True)
class Prepared:
    """The database that all executions of a pair begin with.

    Args:
        objects: the bucket.
        versions: rows of every version there is.
        now_us: when the two begin.
    """

    objects: dict[str, MemoryObject]
    versions: dict[int, Rows]
    now_us: int


def calm(bucket: MemoryBucket, seed: str = "reader") -> Database:
    """A process that nothing disturbs."""
    rng = random.Random(seed)
    clock_us = bucket.clock_us
    runtime = Runtime(clock_us, lambda: clock_us() / 1e6, lambda seconds: None, rng, threads=1)
    return Database(MemoryStore(bucket, runtime), runtime)


def prepare(pair: Pair, now_us: int) -> Prepared:
    """Makes the database of a pair."""
    bucket = MemoryBucket(lambda: now_us, "simulation")
    pair.prepare(calm(bucket, pair.name))
    versions = _versions(calm(bucket)) if bucket.objects else {}
    return Prepared(dict(bucket.objects), versions, now_us + round(pair.hours * 3_600_000_000))


class Judge:
    """Judges executions of one pair. Those that ended alike are judged once."""

    def __init__(self, pair: Pair, prepared: Prepared) -> None:
        self.pair, self._prepared = pair, prepared
        self._right: set[tuple[bytes, str, str]] = set()

    @staticmethod
    def end(execution: Execution) -> bytes:
        """What an execution came to: the bucket, and what the two were told."""
        digest = hashlib.blake2b(digest_size=16)
        for key, there in sorted(execution.bucket.objects.items()):
            digest.update(f"{key} {there.etag} {there.last_modified_us}\n".encode())
        for outcome in execution.outcomes:
            digest.update(f"{outcome}\n".encode())
        return digest.digest()

    def judge(self, execution: Execution) -> bytes:
        """Returns its ``end``. Raises ViolationError."""
        excused = [
            (self._may_be_left_out(execution, number), self._may_be_in_doubt(execution, number))
            for number in range(len(execution.outcomes))
        ]
        end = self.end(execution)
        judged = end, str(excused), str(self._done_first(execution))
        if judged not in self._right:
            self._check(execution)
            self._right.add(judged)
        return end

    def _check(self, execution: Execution) -> None:
        self._check_errors(execution)
        with _readable(execution, "after it the database"):
            db = calm(execution.bucket)
            horizon = max(db.context.head.refresh().manifest.horizon, 1)
            versions = self._read(db, execution)
        before = self._prepared.versions
        for version, rows in before.items():
            if version >= horizon and versions[version] != rows:
                raise ViolationError(Never.LOST, f"version {version} has changed to {versions[version]}")
        base = max(before, default=0)
        chain = [versions[version] for version in sorted(versions) if version >= max(base, horizon)]
        if not base:
            chain.insert(0, {})
        self._check_serial(execution, chain, whole=horizon <= base or not base)
        self._check_whole(db.context, execution)
        self._check_later(execution, versions.get(db.version, {}))

    def _read(self, db: Database, execution: Execution) -> dict[int, Rows]:
        """The rows of every kept version. Old ones are read anew only if any of their objects is not what it was."""
        if not db.version:
            return {}
        before, there = self._prepared, execution.bucket.objects
        touched = any(there.get(key) is not was for key, was in before.objects.items() if key != POINTER)
        newest = max(before.versions, default=0)
        return {**({} if touched else before.versions), **_versions(db, since=0 if touched else newest)}

    def _check_errors(self, execution: Execution) -> None:
        """Nobody is left in doubt, or without an answer, for nothing."""
        for number, (part, outcome) in enumerate(zip(self.pair.parts, execution.outcomes, strict=True)):
            error = outcome.error
            if outcome.kind == "unknown" and not self._may_be_in_doubt(execution, number):
                raise ViolationError(Never.MISREPORTED, f"{part.name} is told {error}, though nothing went wrong")
            if outcome.kind == "failed" and not isinstance(error, Error):
                assert error is not None
                if isinstance(error, Exception):
                    raise unexpected(part.name, error) from error
                raise error

    def _check_serial(self, execution: Execution, chain: list[Rows], *, whole: bool) -> None:
        """The rows of the versions are those of some order of what was done."""
        seen = [rows for rows, _ in groupby(chain)]
        orders = list(self._orders(execution, honest=True))
        for _, order in orders:
            expected = [rows for rows, _ in groupby(order)]
            if seen == expected or (not whole and seen == expected[-len(seen) :]):
                return
        raise self._named(execution, seen, orders)

    def _orders(self, execution: Execution, *, honest: bool) -> Iterator[_Order]:
        """Rows after each step, for each order of the two that fits what they were told.

        Args:
            honest: otherwise whatever they were told may be wrong.
        """
        done_first = self._done_first(execution)
        for order in ((), (0,), (1,), *permutations((0, 1))):
            if len(order) == 2 and honest and order[1] in done_first:
                continue
            left = [number for number in (0, 1) if number not in order]
            if honest and not all(self._may_be_left_out(execution, number) for number in left):
                continue
            versions = self._prepared.versions
            truth = Truth(deepcopy(versions[max(versions)]) if versions else {})
            chain = [truth.rows]
            for number in order:
                if not self._follows(execution, number, truth, honest=honest):
                    break
                chain.append(truth.rows)
            else:
                yield order, chain

    def _follows(self, execution: Execution, number: int, truth: Truth, *, honest: bool) -> bool:
        """Whether what one was told is what it is to be told here."""
        part, outcome = self.pair.parts[number], execution.outcomes[number]
        try:
            expected = part.effect(truth)
        except Error as error:
            return not honest or (outcome.kind == "failed" and type(outcome.error) is type(error))
        if not honest or outcome.kind in ("unknown", "crashed"):
            return True
        if outcome.kind == "failed":
            return False
        return expected is None or part.shown(outcome.value) == expected

    def _may_be_left_out(self, execution: Execution, number: int) -> bool:
        outcome, part = execution.outcomes[number], self.pair.parts[number]
        if outcome.kind in ("unknown", "crashed"):
            return True
        if outcome.kind == "done":
            return False
        if isinstance(outcome.error, StoreUnavailableError):
            return _was_hit(execution, number)
        return _has_reason(execution, outcome, part)

    def _may_be_in_doubt(self, execution: Execution, number: int) -> bool:
        outcome = execution.outcomes[number]
        if outcome.kind != "unknown":
            return False
        return _was_hit(execution, number) or _has_reason(execution, outcome, self.pair.parts[number])

    @staticmethod
    def _done_first(execution: Execution) -> list[int]:
        """Who may have had an answer before the other began, so that the other must have seen what he did."""
        return [
            number
            for number, outcome in enumerate(execution.outcomes)
            if outcome.kind == "done" and execution.could_be_first(number, 1 - number)
        ]

    def _named(self, execution: Execution, seen: list[Rows], orders: list[_Order]) -> ViolationError:
        """Which of the eight it is that no order fits."""
        told = "; ".join(
            f"{part.name} {outcome}" for part, outcome in zip(self.pair.parts, execution.outcomes, strict=True)
        )
        what = f"{told}; the versions hold {seen}, which is no order of that"
        final = _flat(seen[-1]) if seen else Counter()
        ends = [_flat(chain[-1]) for _, chain in orders]
        if any(count > max((end[row] for end in ends), default=1) > 0 for row, count in final.items()):
            return ViolationError(Never.TWICE if self.pair.events else Never.LOST, what)
        kinds = [outcome.kind for outcome in execution.outcomes]
        fitting = [
            order
            for order, chain in self._orders(execution, honest=False)
            if seen == [rows for rows, _ in groupby(chain)]
        ]
        as_told = [order for order in fitting if all((kinds[at] != "failed") == (at in order) for at in (0, 1))]
        if fitting and not as_told:
            return ViolationError(Never.MISREPORTED, what)
        for outcome in execution.outcomes:
            if isinstance(outcome.error, Exception) and outcome.kind == "failed" and not orders:
                return unexpected(told, outcome.error)
        if as_told:  # what was written is right, so what was read is not
            return ViolationError(Never.HALF, what)
        before = sum((_flat(rows) for rows in (*self._prepared.versions.values(), *seen[:-1])), Counter())
        if ends and any(not any(end[row] for end in ends) and before[row] for row in final):
            return ViolationError(Never.REVIVED, what)
        if ends and any(all(end[row] for end in ends) and before[row] and not final[row] for row in ends[0]):
            return ViolationError(Never.LOST, what)
        return ViolationError(Never.HALF, what)

    @staticmethod
    def _check_whole(context: Context, execution: Execution) -> None:
        if not execution.bucket.objects:
            return
        with readable("verify"):
            report = verify(context, deep=True, all_versions=True)
        if report.errors:
            gone = any("missing" in str(error) for error in report.errors)
            never = Never.COLLECTED if gone else Never.UNREADABLE
            raise ViolationError(never, f"verify: {'; '.join(map(str, report.errors[:3]))}")

    @staticmethod
    def _check_later(execution: Execution, rows: Rows) -> None:
        """Whatever resolution and compaction do later, the rows stay what they are."""
        bucket = MemoryBucket(execution.bucket.clock_us, "simulation")
        bucket.objects.update(execution.bucket.objects)
        with _readable(execution, "resolved and compacted later, the database"):
            db = calm(bucket, "later")
            for name in rows:
                resolve(db.context, name)
                compact(db.context, name)
            newest = db.refresh()
            later = _versions(db, newest).get(newest, {})
        if later == rows:
            return
        more = _flat(later) - _flat(rows)
        raise ViolationError(
            Never.REVIVED if more else Never.LOST, f"resolved and compacted later, {rows} became {later}"
        )


@contextmanager
def _readable(execution: Execution, what: str) -> Iterator[None]:
    """See ``readable``; what is missing because somebody has deleted it is told apart."""
    try:
        with readable(what):
            yield
    except ViolationError as error:
        cause = error.__cause__
        deletes = any(step.waiting.request and step.waiting.request.verb is Verb.DELETE for step in execution.steps)
        if deletes and isinstance(cause, CorruptionError) and cause.is_missing:
            raise ViolationError(Never.COLLECTED, error.what) from cause
        raise


def _has_reason(execution: Execution, outcome: Outcome, part: Part) -> bool:
    reasons = [reason for kind, reason in part.may.items() if isinstance(outcome.error, kind)]
    return any(reason(execution, outcome) for reason in reasons)


def _was_hit(execution: Execution, number: int) -> bool:
    return execution.struck and execution.fault is not None and execution.fault.task == number


def _versions(db: Database, since: int = 0) -> dict[int, Rows]:
    """The rows of all kept versions from ``since`` on."""
    manifest = db.context.head.refresh().manifest
    found: dict[int, Rows] = {}
    for version in range(max(manifest.horizon, since, 1), manifest.version + 1):
        snapshot = db.at(version=version)
        users = [name for name in snapshot.tables() if not name.endswith(_MEMORY)]
        found[version] = {name: rows_of(snapshot.table(name).to_arrow()) for name in users}
    return found


def _flat(rows: Rows) -> Counter[Any]:
    return Counter((name, row) for name, there in rows.items() for row in there)
