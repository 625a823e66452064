"""Checks that recorded transactions had snapshot isolation, from the values that they read alone.

Each written row has a number of its own. So the rows of a read show which commits it saw (the one that wrote each
row: a dependency, wr) and which it did not see (the one that removed a row, or wrote a missing one: an
anti-dependency, rw). Commits overwrite one pointer, so that their order is known (ww). Adya's phenomena are cycles of
such edges; snapshot isolation forbids those in which no two anti-dependencies are neighbours.

No search for cycles is needed. Since the order of commits is total, every forbidden cycle contains a transaction
that must have begun AFTER some commit (whose rows it saw or replaced, or which its process knew to be committed) and
BEFORE one that is not later (whose rows it missed, or its own). So each transaction has lower and upper bounds on the
version that it saw, and the history is isolated if and only if all lower bounds are below all upper bounds. Two
bounds that contradict each other are the cycle, and make the story.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from typing import NamedTuple

from dolmen_simulator.judge.never import Never, ViolationError

_MASK = (1 << 64) - 1
_FOREVER = 1 << 62


class Anomaly(Enum):
    """The anomalies that isolation forbids, with Adya's names where there are any."""

    DIRTY_WRITE = "dirty write (G0): the writes of one transaction belong to several commits"
    ABORTED_READ = "aborted read (G1a): a row that no commit holds was seen"
    INTERMEDIATE_READ = "intermediate read (G1b): a row was seen that its own transaction had replaced"
    CIRCULAR = "circular information flow (G1c): a transaction saw what was committed after it"
    READ_SKEW = "read skew (G-single): a part of one commit was seen, and a part not"
    LOST_UPDATE = "lost update (G-single): a transaction replaced what it had not seen"
    NO_SNAPSHOT = "no snapshot (G-SI): a commit was seen, and an earlier one not"
    OWN_WRITES = "read your writes: a process did not see what it had been told was committed"
    BACKWARDS = "monotonic reads: a process saw an older version than before"
    STALE = "stale read: what was committed before a read of the newest version began was not seen"
    FUTURE = "a read saw what was committed after it had ended"
    OTHER_VERSION = "a read of one version saw another"


class RowLifetime(NamedTuple):
    """The time of a row under one table name. A rename moves the rows of a table from one name to another.

    Args:
        table: name of the table.
        key: the row's key.
        added_in: version that wrote the row, or brought it to this name.
        removed_in: version that removed the row, or took it from this name; None if there is none.
    """

    table: str
    key: int
    added_in: int
    removed_in: int | None = None


class Read(NamedTuple):
    """The result of a read: all rows of a table, or with ``key`` those with that key."""

    table: str
    rows: frozenset[int]
    key: int | None = None


@dataclass
class RecordedTransaction:
    """A transaction, or a call that only reads, as its process saw it.

    Args:
        what: description for people.
        session: the process; its transactions do not overlap, and each sees at least what those before it saw.
        began_us, ended_us: when it began and ended.
        reads: its reads, each from before it wrote to the same table.
        writes: rows that it wrote, with their expected version; None for no version.
        landed_version: its version; None if it committed none.
        acknowledged: whether its process knows that it is committed.
        at: the version that it asked for, which removes it from the order of its session.
        fresh: whether it asked for the newest version.
    """

    what: str
    session: str
    began_us: int
    ended_us: int
    reads: list[Read] = field(default_factory=list)
    writes: Mapping[int, int | None] = field(default_factory=dict)
    landed_version: int | None = None
    acknowledged: bool = False
    at: int | None = None
    fresh: bool = False


@dataclass
class History:
    """A recorded history.

    Args:
        landings: landing time and description of each version, from 1 on.
        lives: lifetimes of each row, in order.
        transactions: all transactions.
    """

    landings: Sequence[tuple[int, str]]
    lives: Mapping[int, Sequence[RowLifetime]]
    transactions: Sequence[RecordedTransaction]


class FoundAnomaly(NamedTuple):
    """An anomaly, with the story of how it came about."""

    anomaly: Anomaly
    story: str


class _Bound(NamedTuple):
    """A bound on the version that a transaction saw, with its reason."""

    version: int
    kind: str
    why: str


_Span = tuple[int, int]


def check(history: History) -> None:
    """Raises ViolationError with the story of the first anomaly, if there is one."""
    if (found := find(history)) is not None:
        raise ViolationError(Never.HALF, f"{found.anomaly.value}\n{found.story}")


def find(history: History) -> FoundAnomaly | None:
    """Finds the first anomaly, in the order in which transactions began; None if there is none."""
    return next(_Search(history).anomalies(), None)


class _Search:
    """A search through one history."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._landed_us = [us for us, _ in history.landings]
        self._numbers = {row: _hash(row) for row in history.lives}
        self._changes, self._spans = _spans(history.lives, self._numbers)
        self._seen: dict[str, _Bound] = {}
        self._by_version: dict[int, list[RowLifetime]] = defaultdict(list)
        for life in chain.from_iterable(history.lives.values()):
            self._by_version[life.added_in].append(life)
            if life.removed_in is not None:
                self._by_version[life.removed_in].append(life)

    def anomalies(self) -> Iterator[FoundAnomaly]:
        written = {row: each for each in self._history.transactions for row in each.writes}
        for each in sorted(self._history.transactions, key=lambda each: (each.began_us, each.ended_us)):
            yield from self._writes(each)
            yield from self._strangers(each, written)
            yield from self._contradiction(each)

    # ---- rows of no commit -------------------------------------------------------------------------------------------

    def _writes(self, each: RecordedTransaction) -> Iterator[FoundAnomaly]:
        for row, version in each.writes.items():
            lives = self._history.lives.get(row)
            if lives is not None and lives[0].added_in != version:
                own = f"version {version}" if version else "no commit"
                yield FoundAnomaly(
                    Anomaly.DIRTY_WRITE,
                    f"  {each.what} is {own}\n  row {row}, which it wrote, belongs to {self._name(lives[0].added_in)}",
                )

    def _strangers(
        self, each: RecordedTransaction, written: Mapping[int, RecordedTransaction]
    ) -> Iterator[FoundAnomaly]:
        for read in each.reads:
            for row in sorted(read.rows - self._history.lives.keys()):
                writer = written.get(row)
                landed = writer is not None and writer.writes[row] is not None
                yield FoundAnomaly(
                    Anomaly.INTERMEDIATE_READ if landed else Anomaly.ABORTED_READ,
                    f"  {each.what} saw row {row} of {read.table!r}\n"
                    f"  it was written by {writer.what if writer else 'nobody'}, and stands in no version",
                )

    def _sum(self, rows: frozenset[int]) -> int:
        """The hash of a set of rows; -1 if one of them is in no version."""
        try:
            return sum(map(self._numbers.__getitem__, rows)) & _MASK
        except KeyError:
            return -1

    # ---- bounds on the version that a transaction saw ----------------------------------------------------------------

    def _contradiction(self, each: RecordedTransaction) -> Iterator[FoundAnomaly]:
        least, most = list(self._after(each)), list(self._before(each))
        known = [self._spans.get(read[::2], {0: [(0, _FOREVER)]}).get(self._sum(read.rows)) for read in each.reads]
        low, high = max((b.version for b in least), default=0), min((b.version for b in most), default=_FOREVER)
        if low < high and all(known):
            common = _common([spans for spans in known if spans])
            fitting = next((span for span in common if span[0] < high and span[1] > low), None)
            if fitting is not None:
                self._remember(each, max(fitting[0], low))
                return
        for read, spans in zip(each.reads, known, strict=True):
            if spans:
                first, end = next((span for span in reversed(spans) if span[0] < high), spans[-1])
                least.append(_Bound(first, "wr", f"saw {_about(read)} as {self._name(first)} left it"))
                if end < _FOREVER:
                    most.append(_Bound(end, "rw", f"saw {_about(read)} as it was before {self._name(end)}"))
            else:
                self._by_row(read, least, most)
        after = max(least, key=lambda bound: bound.version, default=_Bound(0, "", ""))
        before = min(most, key=lambda bound: bound.version, default=_Bound(_FOREVER, "", ""))
        if after.version < before.version:
            for read, spans in zip(each.reads, known, strict=True):
                if spans is None and read.rows <= self._history.lives.keys():  # they have been elsewhere in between
                    yield FoundAnomaly(Anomaly.READ_SKEW, f"  {each.what} saw {_about(read)} as no version left it")
            return
        story = [f"  {each.what} {after.why}", f"  {each.what} {before.why}"]
        if after.version > before.version:
            story.append(f"  {self._name(before.version)} was before {self._name(after.version)}")
        yield FoundAnomaly(_anomaly(after, before), "\n".join(story))

    def _after(self, each: RecordedTransaction) -> Iterator[_Bound]:
        """Lower bounds that do not follow from its reads."""
        if each.at is not None:
            yield _Bound(each.at, "at", f"asked for version {each.at}")
            return
        if (seen := self._seen.get(each.session)) is not None:
            yield seen
        if each.fresh and (version := bisect_left(self._landed_us, each.began_us)):
            yield _Bound(version, "fresh", f"began after {self._name(version)} had landed, and asked for the newest")
        if each.landed_version is not None:
            for read in each.reads:
                yield from self._replaced(each.landed_version, read)

    def _before(self, each: RecordedTransaction) -> Iterator[_Bound]:
        """Upper bounds that do not follow from its reads."""
        if each.at is not None:
            yield _Bound(each.at + 1, "at", f"asked for version {each.at}")
        if each.landed_version is not None:
            yield _Bound(each.landed_version, "own", f"is itself {self._name(each.landed_version)}")
        if (version := bisect_right(self._landed_us, each.ended_us) + 1) <= len(self._landed_us):
            yield _Bound(version, "future", f"had ended before {self._name(version)} landed")

    def _replaced(self, landed: int, read: Read) -> Iterator[_Bound]:
        """The last earlier commit that wrote one of the rows that this one read and replaced."""
        keys = {life.key for life in self._by_version[landed] if life.table == read.table}
        for key in keys if read.key is None else keys & {read.key}:
            changes = self._changes[read.table, key]
            place = bisect_left(changes, landed)
            if place:
                last = changes[place - 1]
                yield _Bound(
                    last, "ww", f"replaced rows with key {key} of {read.table!r} as {self._name(last)} left them"
                )

    def _by_row(self, read: Read, least: list[_Bound], most: list[_Bound]) -> None:
        """Adds the bounds that follow from each row of a read whose rows match no version."""
        lives, seen = self._history.lives, 0
        for row in sorted(read.rows & lives.keys()):
            life = _lifetime_in(lives[row], read.table)
            if life.table != read.table or read.key not in (None, life.key):
                most.append(_Bound(0, "rw", f"saw row {row} in {_about(read)}, which is of {life.table!r} {life.key}"))
            least.append(
                _Bound(life.added_in, "wr", f"saw row {row} of {read.table!r}, written by {self._name(life.added_in)}")
            )
            if life.removed_in is not None:
                most.append(
                    _Bound(
                        life.removed_in,
                        "rw",
                        f"saw row {row} of {read.table!r}, which {self._name(life.removed_in)} removed",
                    )
                )
            seen = max(seen, life.added_in)
        for row, all_lives in lives.items():
            life = _lifetime_in(all_lives, read.table)
            inside = life.table == read.table and read.key in (None, life.key) and row not in read.rows
            if inside and life.added_in <= seen and (life.removed_in is None or life.removed_in > seen):
                most.append(
                    _Bound(
                        life.added_in,
                        "rw",
                        f"did not see row {row} of {read.table!r}, written by {self._name(life.added_in)}",
                    )
                )

    def _remember(self, each: RecordedTransaction, version: int) -> None:
        """Remembers the version that a process has seen, and must see from now on."""
        if each.at is not None:
            return
        bound = _Bound(
            version, "session", f"came after {each.what} in its process, which had seen {self._name(version)}"
        )
        if each.landed_version is not None and each.acknowledged:
            why = f"came after {each.what} in its process, which was told of {self._name(each.landed_version)}"
            bound = _Bound(each.landed_version, "told", why)
        if (known := self._seen.get(each.session)) is None or bound.version > known.version:
            self._seen[each.session] = bound

    def _name(self, version: int) -> str:
        if not 0 < version <= len(self._history.landings):
            return f"version {version}"
        return f"version {version} ({self._history.landings[version - 1][1]})"


def _anomaly(after: _Bound, before: _Bound) -> Anomaly:
    if "at" in (after.kind, before.kind):
        return Anomaly.OTHER_VERSION
    if after.kind in (named := {"told": Anomaly.OWN_WRITES, "session": Anomaly.BACKWARDS, "fresh": Anomaly.STALE}):
        return named[after.kind]
    if before.kind == "future":
        return Anomaly.FUTURE
    if before.kind == "own":
        return Anomaly.CIRCULAR
    if after.kind == "ww":
        return Anomaly.LOST_UPDATE
    return Anomaly.READ_SKEW if after.version == before.version else Anomaly.NO_SNAPSHOT


def _lifetime_in(lives: Sequence[RowLifetime], table: str) -> RowLifetime:
    """A row's lifetime under a table name, from the first to the last; its first lifetime if it has none there."""
    own = [life for life in lives if life.table == table]
    return own[0]._replace(removed_in=own[-1].removed_in) if own else lives[0]


def _about(read: Read) -> str:
    return repr(read.table) if read.key is None else f"rows with key {read.key} of {read.table!r}"


# ---- content of each table and key over time -------------------------------------------------------------------------

_Place = tuple[str, int | None]


def _spans(
    lives: Mapping[int, Sequence[RowLifetime]], numbers: Mapping[int, int]
) -> tuple[dict[_Place, list[int]], dict[_Place, dict[int, list[_Span]]]]:
    """The versions that changed each table and key (None: the whole table), and the spans of each of its contents.

    A content is identified by the sum of its rows' hashes, 64 bits wide.
    """
    events: dict[_Place, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for row, (table, key, born, died) in ((row, life) for row, each in lives.items() for life in each):
        value = numbers[row]
        for whole in (None, key):
            at = events[table, whole]
            at[born] += value
            if died is not None:
                at[died] -= value
    changes: dict[_Place, list[int]] = defaultdict(list)
    spans: dict[_Place, dict[int, list[_Span]]] = {}
    for place, at in events.items():
        versions = changes[place] = sorted(at)
        held = spans[place] = defaultdict(list)
        total = first = 0
        for version in versions:
            held[total].append((first, version))
            total, first = (total + at[version]) & _MASK, version
        held[total].append((first, _FOREVER))
    return changes, spans


def _hash(row: int) -> int:
    """Splitmix64, which maps consecutive numbers far apart."""
    z = (row + 1) * 0x9E3779B97F4A7C15 & _MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _MASK
    return z ^ z >> 31


def _common(all_spans: Sequence[Sequence[_Span]]) -> list[_Span]:
    """The intersection of all spans, in order."""
    common: list[_Span] = [(0, _FOREVER)]
    for spans in all_spans:
        common = [(max(a, c), min(b, d)) for a, b in common for c, d in spans if max(a, c) < min(b, d)]
    return sorted(common)
