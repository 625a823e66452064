"""What snapshot isolation forbids is found and named in recorded transactions, and nothing else is."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dolmen_simulator.judge.isolation import Anomaly, History, Read, RecordedTransaction, RowLifetime, check, find
from dolmen_simulator.judge.never import Never, ViolationError


def made(lives: dict[int, RowLifetime], *transactions: RecordedTransaction, versions: int = 0) -> History:
    """A history in which version n lands at 10 n."""
    return moved({row: [life] for row, life in lives.items()}, *transactions, versions=versions)


def moved(lives: dict[int, list[RowLifetime]], *transactions: RecordedTransaction, versions: int = 0) -> History:
    """The same, in which tables are renamed."""
    last = max(versions, *(life.removed_in or life.added_in for each in lives.values() for life in each), 0)
    return History([(10 * n, f"commit {n}") for n in range(1, last + 1)], lives, transactions)


def seen(what: str, *reads: Read, begins: int = 0, ends: int = 10**6, **said: object) -> RecordedTransaction:
    """A transaction with these reads."""
    return RecordedTransaction(what, str(said.pop("session", what)), begins, ends, list(reads), **said)  # type: ignore[arg-type]


def of(table: str, *rows: int, key: int | None = None) -> Read:
    return Read(table, frozenset(rows), key)


#: Version 1 writes row 1 of a and row 2 of b, version 2 replaces both.
BOTH = {
    1: RowLifetime("a", 1, 1, 2),
    2: RowLifetime("b", 1, 1, 2),
    3: RowLifetime("a", 1, 2),
    4: RowLifetime("b", 1, 2),
}
#: Versions 1 and 2 write a and b anew, each one of them.
APART = {
    1: RowLifetime("a", 1, 1, 3),
    2: RowLifetime("b", 1, 2, 4),
    3: RowLifetime("a", 1, 3),
    4: RowLifetime("b", 1, 4),
}


def named(history: History) -> Anomaly | None:
    found = find(history)
    return found.anomaly if found else None


def test_what_every_transaction_saw_of_one_version_is_no_anomaly() -> None:
    history = made(
        BOTH,
        seen("first", of("a", 1), of("b", 2)),
        seen("second", of("a", 3), of("b", 4)),
        seen("nobody", of("a"), of("b"), of("c")),
    )
    assert find(history) is None
    check(history)


def test_a_row_of_no_commit_is_an_aborted_read() -> None:
    failed = seen("failed", writes={9: None})
    assert named(made(BOTH, failed, seen("reader", of("a", 9)))) is Anomaly.ABORTED_READ
    assert named(made(BOTH, seen("reader", of("a", 77)))) is Anomaly.ABORTED_READ


def test_a_row_that_its_transaction_replaced_is_an_intermediate_read() -> None:
    writer = seen("writer", writes={1: 1, 9: 1}, landed_version=1)
    assert named(made(BOTH, writer, seen("reader", of("a", 9)))) is Anomaly.INTERMEDIATE_READ


def test_writes_of_one_transaction_in_two_commits_are_a_dirty_write() -> None:
    assert named(made(APART, seen("writer", writes={1: 1, 2: 1}, landed_version=1))) is Anomaly.DIRTY_WRITE
    assert named(made(APART, seen("lost", writes={1: None}))) is Anomaly.DIRTY_WRITE


def test_a_transaction_that_saw_its_own_commit_or_a_later_one_is_in_a_circle() -> None:
    one = seen("one", of("b", 2), writes={1: 1}, landed_version=1)
    other = seen("other", of("a", 1), writes={2: 2}, landed_version=2)
    assert named(made(APART, one, other)) is Anomaly.CIRCULAR
    assert named(made(APART, other)) is None


def test_half_of_a_commit_is_read_skew_and_the_story_tells_both_halves() -> None:
    found = find(made(BOTH, seen("reader", of("a", 1), of("b", 4))))
    assert found is not None
    assert found.anomaly is Anomaly.READ_SKEW
    assert found.story.splitlines() == [
        "  reader saw 'b' as version 2 (commit 2) left it",
        "  reader saw 'a' as it was before version 2 (commit 2)",
    ]


def test_half_of_a_commit_within_one_table_is_read_skew() -> None:
    lives = {1: RowLifetime("a", 1, 1), 2: RowLifetime("a", 2, 1), 3: RowLifetime("a", 3, 2)}
    assert named(made(lives, seen("reader", of("a", 1)))) is Anomaly.READ_SKEW
    assert named(made(lives, seen("reader", of("a", 1, 2, key=None)))) is None
    assert named(made(lives, seen("reader", of("a", 1, key=1), of("a", key=2)))) is Anomaly.READ_SKEW


def test_a_later_commit_without_an_earlier_one_is_no_snapshot() -> None:
    found = find(made(APART, seen("one", of("a", 1), of("b", 4))))
    assert found is not None
    assert found.anomaly is Anomaly.NO_SNAPSHOT
    assert found.story.endswith("  version 3 (commit 3) was before version 4 (commit 4)")


def test_two_readers_that_disagree_on_the_order_of_two_commits_are_no_snapshot() -> None:
    """The long fork: one of the two contradicts the order of the commits."""
    lives = {1: RowLifetime("a", 1, 1), 2: RowLifetime("b", 1, 2)}
    fork = made(lives, seen("one", of("a", 1), of("b")), seen("other", of("a"), of("b", 2)))
    assert named(fork) is Anomaly.NO_SNAPSHOT


def test_two_increments_of_one_value_are_a_lost_update() -> None:
    lives = {1: RowLifetime("a", 1, 1, 2), 2: RowLifetime("a", 1, 2, 3), 3: RowLifetime("a", 1, 3)}
    one = seen("one", of("a", 1, key=1), writes={2: 2}, landed_version=2)
    other = seen("other", of("a", 1, key=1), writes={3: 3}, landed_version=3)
    assert named(made(lives, one)) is None
    assert named(made(lives, one, other)) is Anomaly.LOST_UPDATE
    assert named(made(lives, one, seen("other", of("a", 2, key=1), writes={3: 3}, landed_version=3))) is None


def test_two_inserts_of_a_key_that_neither_saw_are_a_lost_update() -> None:
    lives = {1: RowLifetime("a", 5, 1), 2: RowLifetime("a", 5, 2)}
    one = seen("one", of("a", key=5), writes={1: 1}, landed_version=1)
    other = seen("other", of("a", key=5), writes={2: 2}, landed_version=2)
    assert named(made(lives, one, other)) is Anomaly.LOST_UPDATE


def test_a_rename_that_is_seen_by_half_is_read_skew_and_one_there_and_back_is_none() -> None:
    """Version 2 swaps two tables, and version 3 swaps them back."""
    lives = {
        1: [RowLifetime("a", 1, 1, 2), RowLifetime("b", 1, 2, 3), RowLifetime("a", 1, 3)],
        2: [RowLifetime("b", 2, 1, 2), RowLifetime("a", 2, 2, 3), RowLifetime("b", 2, 3)],
    }
    assert named(moved(lives, seen("both", of("a", 2), of("b", 1)))) is None
    assert named(moved(lives, seen("one, twice", of("a", 1), of("b", 1)))) is Anomaly.READ_SKEW
    assert named(moved(lives, seen("both in one", of("a", 1, 2)))) is Anomaly.READ_SKEW
    back = seen("back", of("a", 1), of("b", 2), writes={3: 4}, landed_version=4)
    assert named(moved({**lives, 3: [RowLifetime("a", 1, 4)]}, back)) is None


def test_write_skew_is_allowed() -> None:
    lives = {
        1: RowLifetime("a", 1, 1, 2),
        2: RowLifetime("b", 1, 1, 3),
        3: RowLifetime("a", 1, 2),
        4: RowLifetime("b", 1, 3),
    }
    one = seen("one", of("a", 1), of("b", 2), writes={3: 2}, landed_version=2)
    other = seen("other", of("a", 1), of("b", 2), writes={4: 3}, landed_version=3)
    assert find(made(lives, one, other)) is None


def test_blind_writes_of_one_key_are_allowed() -> None:
    lives = {1: RowLifetime("a", 1, 1, 2), 2: RowLifetime("a", 1, 2, 3), 3: RowLifetime("a", 1, 3)}
    assert find(made(lives, *(seen(f"{n}", writes={n: n}, landed_version=n) for n in (1, 2, 3)))) is None


def test_a_process_sees_what_it_was_told_is_committed() -> None:
    writer = seen("writer", writes={3: 3}, landed_version=3, acknowledged=True, session="p", begins=25, ends=35)
    after = seen("after", of("a", 1), session="p", begins=40)
    assert named(made(APART, writer, after)) is Anomaly.OWN_WRITES
    other = seen("other", of("a", 1), session="q", begins=40)
    assert named(made(APART, writer, other)) is None
    writer.acknowledged = False
    assert named(made(APART, writer, after)) is None, "it was never told"


def test_versions_that_a_process_sees_never_go_back() -> None:
    new = seen("new", of("a", 3), session="p", begins=50)
    old = seen("old", of("a", 1), session="p", begins=60)
    assert named(made(APART, new, old)) is Anomaly.BACKWARDS
    old.at = 2
    assert named(made(APART, new, old)) is None, "it asked for an old one"
    old.at = 3
    assert named(made(APART, new, old)) is Anomaly.OTHER_VERSION


def test_a_read_of_the_newest_version_sees_what_had_landed_when_it_began() -> None:
    assert named(made(APART, seen("reader", of("a", 1), begins=31, fresh=True))) is Anomaly.STALE
    assert named(made(APART, seen("reader", of("a", 1), begins=29, fresh=True))) is None
    assert named(made(APART, seen("reader", of("a", 1), begins=31))) is None, "a transaction may begin on what is known"


def test_a_read_sees_nothing_that_landed_after_it_had_ended() -> None:
    assert named(made(APART, seen("reader", of("a", 3), begins=1, ends=25))) is Anomaly.FUTURE


def test_an_anomaly_is_a_violation_that_tells_what_happened() -> None:
    with pytest.raises(ViolationError, match=r"half: read skew[^\n]*\n  reader saw 'b'") as caught:
        check(made(BOTH, seen("reader", of("a", 1), of("b", 4))))
    assert caught.value.never is Never.HALF


def test_one_read_that_is_wrong_is_found_among_hundreds() -> None:
    lives = {n: RowLifetime(f"t{n % 4}", n % 12, 1 + n // 8, None if n % 3 else 3 + n // 8) for n in range(2_000)}
    reads = []
    for number in range(300):
        rows = {u for u, life in lives.items() if life.added_in <= number % 200 < (life.removed_in or 10**9)}
        each = (of(table, *(u for u in rows if lives[u].table == table)) for table in ("t0", "t1"))
        reads.append(seen(f"reader {number}", *each, session=str(number)))
    assert find(made(lives, *reads)) is None
    wrong = reads[271].reads
    wrong[1] = wrong[1]._replace(rows=wrong[1].rows - {min(wrong[1].rows)})
    found = find(made(lives, *reads))
    assert found is not None
    assert "reader 271" in found.story


# ---- against a reference that tries everything -----------------------------------------------------------------------

TABLES, KEYS, VERSIONS = ("a", "b"), (1, 2), 4


@st.composite
def lives_of(draw: st.DrawFn) -> dict[int, list[RowLifetime]]:
    """Some rows go to another table when they leave one, and perhaps back again."""
    lives: dict[int, list[RowLifetime]] = {}
    for row in range(draw(st.integers(1, 6))):
        table, key, born = draw(st.sampled_from(TABLES)), draw(st.sampled_from(KEYS)), draw(st.integers(1, VERSIONS))
        each = lives[row] = list[RowLifetime]()
        while True:
            died = draw(st.one_of(st.none(), st.integers(born + 1, VERSIONS + 1)))
            died = died if died is None or died <= VERSIONS else None
            each.append(RowLifetime(table, key, born, died))
            if died is None or draw(st.integers(0, 2)):
                break
            table, born = next(other for other in TABLES if other != table), died
    return lives


def held(lives: Mapping[int, Sequence[RowLifetime]], version: int, table: str, key: int | None) -> frozenset[int]:
    return frozenset(
        row
        for row, each in lives.items()
        for life in each
        if life.table == table and key in (None, life.key) and life.added_in <= version < (life.removed_in or 99)
    )


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Transactions that mostly saw some version, and some of whose reads are of another one or of none."""
    lives = draw(lives_of())
    transactions = []
    free = list(range(1, VERSIONS + 1))
    for number in range(draw(st.integers(1, 4))):
        usual = draw(st.integers(0, VERSIONS))
        reads = []
        for _ in range(draw(st.integers(0, 3))):
            table, key = draw(st.sampled_from(TABLES)), draw(st.sampled_from((None, *KEYS)))
            rows = held(lives, draw(st.integers(0, VERSIONS)) if draw(st.integers(0, 3)) == 0 else usual, table, key)
            if draw(st.integers(0, 9)) == 0:
                rows ^= {draw(st.sampled_from(sorted(lives)))}
            reads.append(Read(table, rows, key))
        landed = draw(st.sampled_from([None, *free]))
        if landed:
            free.remove(landed)
        begins = draw(st.integers(0, 45))
        transactions.append(
            seen(
                f"T{number}",
                *reads,
                session=draw(st.sampled_from("pq")),
                begins=begins,
                ends=draw(st.integers(begins, 60)),
                landed_version=landed,
                acknowledged=draw(st.booleans()),
                at=draw(st.integers(1, VERSIONS)) if draw(st.integers(0, 5)) == 0 else None,
                fresh=draw(st.booleans()),
            )
        )
    return moved(lives, *transactions, versions=VERSIONS)


def snapshots(history: History, each: RecordedTransaction) -> Iterator[int]:
    """Every version that could be the one that a transaction saw, apart from its session."""
    lives = [life for each in history.lives.values() for life in each]
    for version in range(VERSIONS + 1):
        fits = all(held(history.lives, version, read.table, read.key) == read.rows for read in each.reads)
        fits = fits and (each.at is None or version == each.at)
        fits = fits and (each.landed_version is None or version < each.landed_version)
        fits = fits and all(us <= each.ended_us for us, _ in history.landings[:version])
        if each.at is None:
            missed = history.landings[version:]
            fits = fits and not (each.fresh and any(us < each.began_us for us, _ in missed))
            for read, other in itertools.product(each.reads, range(version + 1, each.landed_version or 0)):
                mine = {life.key for life in lives if life.table == read.table and each.landed_version in life[2:]}
                theirs = {life.key for life in lives if life.table == read.table and other in life[2:]}
                fits = fits and not (mine & theirs if read.key is None else mine & theirs & {read.key})
        if fits:
            yield version


def possible(history: History) -> bool:
    """Whether any choice of snapshots explains what was seen, tried one by one."""
    ordered = sorted(history.transactions, key=lambda each: (each.began_us, each.ended_us))
    for choice in itertools.product(*(list(snapshots(history, each)) for each in ordered)):
        seen_by: dict[str, int] = {}
        for each, version in zip(ordered, choice, strict=True):
            if each.at is not None:
                continue
            if version < seen_by.get(each.session, 0):
                break
            told = each.landed_version if each.landed_version and each.acknowledged else 0
            seen_by[each.session] = max(version, told, seen_by.get(each.session, 0))
        else:
            return True
    return False


@pytest.mark.slow
@settings(max_examples=20_000 if os.environ.get("DOLMEN_LONG") else 150, deadline=None)
@given(histories())
def test_an_anomaly_is_found_if_and_only_if_no_choice_of_snapshots_explains_what_was_seen(history: History) -> None:
    found = find(history)
    assert (found is None) == possible(history), found
