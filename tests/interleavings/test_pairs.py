"""Two calls at once, in every order of their requests, with every single fault at every point.

By default a 128th of the faults is tried, and a 24th of the pairs that take long, both drawn anew for each seed; the
long mode tries all of them.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Sequence

import pytest

from dolmen_simulator.interleavings.enumeration import Enumeration
from dolmen_simulator.interleavings.registry import PAIRS
from dolmen_simulator.interleavings.steps import Fault
from dolmen_simulator.interleavings.workers import run_pairs
from dolmen_simulator.world.fates import Fate

LONG = bool(os.environ.get("DOLMEN_LONG"))
SEED = os.environ["DOLMEN_TEST_SEED"]
DRAWN = 128
"""One of so many faults is tried by default."""
LARGE, LARGE_DRAWN = 140, 24
"""Pairs with at least this many executions have one in so many tried by default."""
LONG_JUDGED = ("read-modify-write/read-modify-write, and segments", "merge segments/add and merge segments")
"""Pairs with few executions that take as long as those: each leaves many versions with segments, which are all read."""

#: Executions that differ with all faults: about half of the usual number. With fewer, a pair does not do what it did.
AT_LEAST = {
    "append/append": 50,
    "append/delete": 100,
    "upsert/upsert": 50,
    "positions/positions": 70,
    "create/create": 25,
    "create/drop": 40,
    "append/rename": 75,
    "rename/rename": 28,
    "first create/first create": 8,
    "read-modify-write/read-modify-write": 80,
    "update/update": 150,
    "update/append": 150,
    "merge/merge": 150,
    "redelivery/redelivery": 40,
    "redelivery/other batch": 80,
    "reject/create and ingest": 95,
    "transaction/reader": 25,
    "positions/compact": 220,
    "positions/splice": 220,
    "splice/delete": 100,
    "update/compact": 220,
    "resolve/compact": 150,
    "compact/delete": 150,
    "compact/upsert": 170,
    "compact/rename": 95,
    "many files/append": 350,
    "many files/many files": 500,
    "many files/delete": 350,
    "merge segments/append": 60,
    "commit/GC": 2_400,
    "paused job/GC": 1_400,
    "snapshot reader/GC": 700,
    "expire/append": 120,
    "expire/set ttl": 160,
    "changes/changes": 90,
    "changes/changes of equal sequences": 3,
    "changes/changes of a clone": 180,
    "append in an outage/append": 40,
    "frozen append/rows at a time": 50,
    "append of an idle process/append": 30,
    "append of a frozen machine/append": 35,
    "append of a machine whose clocks stood still/append": 50,
    "append/many commits": 70,
    "create when told/drop": 60,
    "commit/GC by other settings": 60,
    "longer retention/GC": 20,
    "frozen spill/append and GC": 270,
    "positions/merge segments": 12,
    "merge segments/resolve": 250,
    "merge segments/compact": 4,
    "merge segments/add and merge segments": 33,
    "read-modify-write/read-modify-write, and segments": 13,
    "add column/append": 90,
    "add column/upsert": 95,
    "add column/compact": 150,
    "add column/restore": 130,
    "add column/add column": 28,
    "replace column/buffered write": 130,
    "drop column/append": 80,
    "drop column/resolve": 110,
    "drop column/delete": 70,
    "drop column/delete in a transaction": 110,
    "drop column/set": 85,
    "other partitions/append": 95,
    "other partitions/compact": 145,
    "partitions, upsert/compact": 160,
    "rename column/delete": 80,
    "rename column/compact": 150,
    "widen columns/append": 90,
    "widen columns/upsert": 95,
    "widen columns/delete": 90,
    "widen columns/compact": 150,
    "widen columns/resolve": 110,
    "widen columns/restore": 130,
    "change fields/append": 80,
    "change fields/append in a transaction": 130,
    "change fields/compact": 150,
    "wide append/restore": 90,
    "widen columns/widen columns": 28,
    "tag/GC": 180,
    "cursor/GC": 180,
    "restore/GC": 350,
    "clone/GC": 350,
    "tagged reader/lost tag and GC": 200,
    "restore of a tag/lost tag and GC": 800,
    "tag/tag": 45,
    "restore/append": 130,
    "restore/compact": 130,
    "restore/resolve": 100,
    "clone/clone": 45,
    "reader of a young version/GC": 2_600,
    "reader of what is released twice/GC": 3_900,
    "tag of the newest/GC": 27,
    "changes read/upsert": 40,
    "changes read/positions": 40,
    "changes read/overwrite": 35,
    "net change read/compact": 50,
    "net change with deletes read/compact": 55,
    "changes read/GC": 2_200,
    "erase/append": 120,
    "erase/upsert": 120,
    "erase/delete": 60,
    "erase/update": 110,
    "erase/merge": 70,
    "erase/read-modify-write": 70,
    "erase/late drop": 145,
    "erase/late drop, renamed": 120,
    "erase/restore": 160,
    "erase/clone": 160,
    "erase/reader of the past": 22,
    "erase/resolve": 140,
    "erase/compact": 180,
    "erase/GC": 17,
    "erase/add column": 115,
    "erase/drop column": 80,
    "erase/erase": 70,
    "forget/append": 60,
    "forget/drop": 60,
    "publish/publish": 5_000,
    "publish/append": 400,
    "publish/GC": 5_000,
    "publish/erase": 500,
    "publish/compact": 600,
    "publish/add column": 350,
    "publish/add column in v2": 800,
    "publish/restore": 600,
    "insert/insert": 30,
    "insert/insert, beside an index": 30,
    "insert/append": 35,
    "insert/append of others": 50,
    "insert/upsert": 35,
    "insert/delete": 30,
    "insert/positions": 30,
    "delete and insert/insert": 34,
    "insert/compact": 75,
    "insert/resolve": 65,
    "insert/restore": 65,
    "insert/build index": 70,
    "build index/compact": 139,
    "build index/build index": 35,
    "build index/erase": 50,
    "build index/GC": 3_000,
    "group/append": 180,
    "group/group": 140,
    "group in an outage/append": 45,
    "group/update": 200,
    "group/rename": 110,
    "group of positions/update": 140,
    "group of reads/append": 200,
    "group of inserts/append": 160,
    "group of inserts/group of inserts": 130,
    "group of requests/redelivery": 80,
    "group of requests/group of requests": 190,
    "add check/append": 70,
    "add check/append of a bad row": 60,
    "add check by rows/append": 100,
    "add check by rows/append of a bad row": 60,
    "add check/upsert of a bad row": 40,
    "add check/insert of a bad row": 40,
    "add check by rows/buffered write": 70,
    "add check/append in a transaction": 40,
    "add check/delete of the bad row": 10,
    "add check/compact": 90,
    "add check/resolve": 70,
    "add check/restore": 90,
    "add check/add check": 40,
    "set not null/append": 70,
    "set not null/append of NULL": 60,
    "add primary key/append": 80,
    "add primary key/append of its key": 80,
    "overwrite a part/append to it": 45,
    "overwrite a part/append elsewhere": 50,
    "overwrite a part/update out of it": 40,
    "overwrite a part/compact": 70,
    "overwrite a part/overwrite a part": 40,
    "delete found rows/append": 65,
    "delete found rows/update to one": 65,
    "delete found rows/delete found rows": 40,
    "delete found rows/delete other found rows": 40,
    "delete found rows/compact": 80,
    "delete found rows/resolve": 65,
    "update in SQL/append": 60,
    "upsert what differs/upsert": 60,
    "upsert what differs/delete": 55,
    "upsert what differs/upsert what differs": 60,
    "upsert what differs/compact": 65,
}
AT_LEAST |= {
    "changes/a late change of a value that is left out": 4,
    "changes/a later change of a value that is left out": 4,
}
_LONGEST_FIRST = sorted(PAIRS, key=lambda name: -AT_LEAST[name])


def chosen_pairs() -> list[str]:
    """The pairs to try, those first that take longest."""
    large = [name for name in _LONGEST_FIRST if AT_LEAST[name] >= LARGE or name in LONG_JUDGED]
    drawn = large if LONG else random.Random(SEED).sample(large, -(-len(large) // LARGE_DRAWN))
    return [name for name in _LONGEST_FIRST if name in drawn or name not in large]


_ONE_SWINGS = {
    "snapshot reader/GC": {1},
    "redelivery/redelivery": {0},
    "reject/create and ingest": {0},
    "rename/rename": {0},
    "paused job/GC": {0},
    "frozen append/rows at a time": {0},
    "append/many commits": {0},
    "create when told/drop": {1},
    "commit/GC by other settings": {0},
    "tagged reader/lost tag and GC": {1},
    "add column/add column": {0},
    "drop column/append": {0},
    "drop column/delete": {0},
    "drop column/delete in a transaction": {0},
    "drop column/set": {0},
    "rename column/delete": {0},
    "widen columns/widen columns": {0},
    "tag/tag": {0},
    "clone/clone": {0},
    "restore/compact": {0},
    "restore/resolve": {0},
    "reader of a young version/GC": {1},
    "reader of what is released twice/GC": {1},
    "tag of the newest/GC": {0},
    "changes read/upsert": {1},
    "changes read/positions": {1},
    "changes read/overwrite": {1},
    "net change read/compact": {1},
    "net change with deletes read/compact": {1},
    "changes read/GC": {1},
    "erase/reader of the past": {0},
    "publish/publish": {0},
    "insert/insert": {0},
    "insert/insert, beside an index": {0},
    "insert/delete": {1},
    "insert/positions": {1},
    "delete and insert/insert": {0},
    "build index/build index": {0},
    "group of inserts/group of inserts": {0},
    "group of requests/redelivery": {0},
    "add check/append of a bad row": {0},
    "add check by rows/append of a bad row": {0},
    "add check/upsert of a bad row": {0},
    "add check/insert of a bad row": {0},
    "add check/append in a transaction": {0},
    "add check/delete of the bad row": {1},
    "add check/add check": {0},
    "set not null/append of NULL": {0},
    "overwrite a part/update out of it": {0},
    "delete found rows/delete found rows": {0},
}


@pytest.mark.slow
@pytest.mark.timeout(14_400 if LONG else 1_200)
def test_no_order_and_no_fault_shows_what_must_never_happen(capsys: pytest.CaptureFixture[str]) -> None:
    counts, names = [], chosen_pairs()

    def draw(name: str, faults: Sequence[Fault]) -> Sequence[Fault]:
        rng = random.Random(f"{SEED} {name}")
        return faults if LONG else rng.sample(faults, (len(faults) + rng.randrange(DRAWN)) // DRAWN)

    with capsys.disabled():
        print(f"\n  DOLMEN_TEST_SEED={SEED}")
        for count in run_pairs(names, quick=not LONG, jobs=min(8, os.cpu_count() or 1), draw=draw):
            counts.append(count)
            print(f"  {count}")
    share = 1 if LONG else DRAWN * 2  # faults differ in how many executions they have
    assert not {count.pair: count.executions for count in counts if count.executions < AT_LEAST[count.pair] / share}
    assert {count.pair for count in counts} == set(names)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["create/create", "append/append"])
def test_the_faults_left_out_in_quick_mode_come_to_no_other_end(name: str) -> None:
    ends = []
    for quick in (False, True):
        enumeration = Enumeration(PAIRS[name], quick=quick)
        enumeration.struck_tasks = (0,)
        undisturbed = enumeration.tally(None)
        ends.append(undisturbed.ends.union(*(enumeration.tally(fault).ends for fault in undisturbed.faults)))
    assert ends[0] == ends[1]


@pytest.mark.slow
def test_each_of_the_two_does_something() -> None:
    """Otherwise there would be nothing to be interleaved."""
    for name, pair in PAIRS.items():
        if name in ("create/create", "create/drop", "first create/first create", "transaction/reader"):
            continue  # the second is refused, or only reads
        execution = Enumeration(pair).replay((), None)
        swung = [
            step.who for step in execution.steps if step.result == "ok" and "put _latest" in step.waiting.description
        ]
        assert set(swung) >= _ONE_SWINGS.get(name, {0, 1}), name


def test_an_execution_is_run_again_by_its_choices() -> None:
    enumeration = Enumeration(PAIRS["append/delete"])
    fault = Fault(1, 3, Fate.LATE)
    first = enumeration.replay((0, 1, 1, 0), fault)
    again = enumeration.replay(first.choices, fault)
    assert again.choices == first.choices
    assert again.choices[:4] == (0, 1, 1, 0)
    assert enumeration.judge.end(again) == enumeration.judge.end(first)


@pytest.mark.slow
def test_the_command_tells_an_execution_step_by_step() -> None:
    command = [sys.executable, "-m", "dolmen_simulator.interleavings", "create/drop", "--choices", "0,0,1,1", "--fault"]
    told = subprocess.run([*command, "0:2:response_lost"], capture_output=True, text=True, check=True).stdout
    assert "put _latest_manifest" in told
    assert told.endswith("nothing is wrong\n")
