"""The benchmarks beside other table formats, at a tiny size: they measure what they say, and notice wrong answers."""

from __future__ import annotations

import ast
import io
import json
import sys
from itertools import chain, pairwise
from pathlib import Path
from typing import Any
from uuid import UUID
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from bench.page import PAGE, updated
from bench.peers import page
from bench.peers.charts import charts
from bench.peers.child import PEERS, WORKS
from bench.peers.figures import LINES, PLACES, PRICES, cell, comparable, figure
from bench.peers.meter import Meter
from bench.peers.ours import Ours
from bench.peers.peer import Ids, Peer, Place, Sums
from bench.peers.plain import Plain
from bench.peers.results import Head, OtherRunError, Outcome, Results
from bench.peers.rows import Oracle, Sizes, event_rows, uuids
from bench.peers.run import Run, versions
from bench.peers.works.clusters import clusters
from bench.peers.works.commits import commits
from bench.peers.works.publication import publication
from bench.peers.works.rounds import upkept_rounds
from bench.peers.works.table import table
from bench.peers.works.together import together
from bench.peers.works.trickle import trickle

from dolmen.base.records import replace

pytestmark = pytest.mark.slow

SUMS = "open, and sums"
BENCH = Path(page.__file__).parent
TINY = replace(
    Sizes.of(0.0, remote=False, seconds=60, long_seconds=60), commits=3, files=3, gets=2, one_row_deletes=3, rounds=5
)
HEAD = Head(0.0, 1, 60.0, 60.0, "a machine", {"pyarrow": "1"}, "", False, "2026-11-24T00:00:00+00:00")


def measured(work: Any, peer: Peer) -> list[dict[str, Any]]:
    sink = io.StringIO()
    work(peer, TINY, Meter(peer.place, sink, TINY.seconds), 1)
    return [line for line in map(json.loads, sink.getvalue().splitlines()) if "begin" not in line]


def place(folder: Path) -> Place:
    return Place(str(folder / "table"), folder / "catalog")


@pytest.mark.parametrize("work", [table, commits, clusters, trickle, upkept_rounds, publication])
def test_every_answer_of_dolmen_is_what_numpy_makes_of_the_same_rows(work: Any, tmp_path: Path) -> None:
    steps = measured(work, Ours(place(tmp_path)))
    answers = [step["right"] for step in steps if "right" in step]
    assert len(answers) > 1
    assert all(answers)
    assert not [step for step in steps if step.get("unsupported")]
    made = {step.get("step") for step in steps}
    shown = {line.step for line in chain.from_iterable(LINES.values()) if line.work == work.__name__}
    assert shown <= made


def test_what_older_versions_need_is_gone_after_cleaning_up(tmp_path: Path) -> None:
    steps = {step.get("step"): step for step in measured(commits, Ours(place(tmp_path)))}
    assert steps["stored"]["files"] == steps["stored"]["commits"] == 3
    assert steps["stored in the end"]["objects"] < steps["stored"]["objects"]


def test_appenders_and_deleters_at_once_lose_nothing(tmp_path: Path) -> None:
    sink = io.StringIO()
    peer = Ours(place(tmp_path))
    together(peer, TINY, Meter(peer.place, sink, 2.0), 1)
    found = json.loads(sink.getvalue().splitlines()[-1])
    assert found["step"] == "together"
    assert (found["lost"], found["revived"], found["twice"], found["right"]) == (0, 0, 0, True)
    assert found["appends"] > 0


def test_plain_files_are_the_floor_of_what_they_can_do(tmp_path: Path) -> None:
    steps = {step.get("step"): step for step in measured(table, Plain(place(tmp_path)))}
    assert steps["append"]["rows"] == TINY.rows
    assert steps["stored"]["files"] == steps["stored"]["objects"] == 1
    assert steps["delete: 1 row"] == {"step": "delete: 1 row", "unsupported": True}
    assert steps["sums"]["right"]


def test_a_wrong_answer_is_told_and_is_no_figure(tmp_path: Path) -> None:
    class Forgetful(Ours):
        """Deletes nothing."""

        def delete_values(self, column: str, values: Ids) -> None:
            pass

    steps = measured(table, Forgetful(place(tmp_path)))
    outcome = Outcome("folder", "table", "dolmen", "done", steps)
    assert "sums after: 1 row" in outcome.wrong
    assert "sums" not in outcome.wrong
    [line] = [line for line in LINES["Deletes from it"] if line.step == "sums after: users"]
    assert cell(line, outcome) == "**wrong**"
    assert figure(line, outcome) is None


class Listener:
    """The output of a run."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def run(self, path: Path, python: Path, head: Head = HEAD) -> Results:
        results = Results(path, head)
        Run(results, python, 8.0, None, None, self.lines.append).measure(["folder"], ["keys"], ["dolmen", "lance"])
        return results


def test_a_run_measures_in_processes_of_their_own_and_goes_on_where_it_was_broken_off(tmp_path: Path) -> None:
    file, missing = tmp_path / "results.jsonl", tmp_path / "no" / "python"
    first = Listener()
    results = first.run(file, missing)
    ours = results.outcomes["folder", "keys", "dolmen"]
    assert (ours.ended, ours.said, ours.wrong) == ("done", "", [])
    assert ours.step("upsert")["rows"] == TINY.upserts
    assert ours.step("upsert")["own_peak_mb"] > 10
    assert ours.step("gets by the index")["done"] == 100
    absent = results.outcomes["folder", "keys", "lance"]
    assert absent.ended == "absent"
    assert first.lines[-1] == f"folder | keys | lance: absent {missing} is missing: make bench-peers installs it"
    again = Listener()
    assert again.run(file, missing).outcomes == results.outcomes
    assert again.lines == []
    with pytest.raises(OtherRunError, match="--fresh"):
        Results(file, replace(HEAD, seed=2))


def test_a_process_that_takes_too_long_is_ended_and_so_is_one_that_fails(tmp_path: Path) -> None:
    told: list[str] = []
    run = Run(Results(tmp_path / "results.jsonl", HEAD), Path(sys.executable), 8.0, None, None, told.append)
    slow = tmp_path / "slow.sh"
    slow.write_text('#!/bin/sh\necho \'{"begin": "wait", "limit": 0.1}\'\nsleep 600\n')
    slow.chmod(0o755)
    task = {"place": {"s3": None}}
    with (tmp_path / "errors").open("w+") as errors:
        steps, ended, said = run._watch(slow, task, errors)
        assert (steps, ended, said) == ([{"step": "wait", "over": "limit", "limit": 0.1}], "limit", "in wait")
        slow.write_text('#!/bin/sh\necho \'{"begin": "fall", "limit": 60}\'\nexit 3\n')
        assert run._watch(slow, task, errors) == ([], "error", "in fall")
    [line] = [line for line in LINES["UUID keys"] if line.step == "upsert" and line.unit == "s"]
    outcome = Outcome("folder", "keys", "iceberg", "limit", [{"step": "upsert", "over": "limit", "limit": 90.0}])
    assert cell(line, outcome) == "> 90 s"


def test_the_oracle_follows_every_change() -> None:
    rows = event_rows(0, 1_000, 7)
    oracle = Oracle(rows)
    more = event_rows(1_000, 100, 8)
    oracle.append(more)
    oracle.delete(np.array([5, 1_050]))
    oracle.delete(slice(10, 20))
    user = rows["user_id"][30].as_py()
    oracle.delete_users(np.array([user]))
    other = event_rows(1_095, 10, 9)
    oracle.upsert(other)
    there = pa.concat_tables([rows, more]).filter(pc.field("id") < 1_095)
    gone = pc.is_in(there["id"], pa.array([5, 1_050, *range(10, 20)]))
    there = there.filter(pc.invert(pc.or_(gone, pc.equal(there["user_id"], user))))
    there = pa.concat_tables([there, other])
    expected = Sums(there.num_rows, pc.sum(there["user_id"]).as_py(), pc.sum(there["amount"]).as_py())
    assert oracle.sums().agrees_with(expected)
    part = there.filter((pc.field("id") >= 0) & (pc.field("id") < 50))
    assert oracle.sums(0, 50).rows == part.num_rows
    assert not oracle.sums().agrees_with(replace(expected, users=expected.users + 1))


def test_uuids_are_uuids_in_no_order_and_each_is_once() -> None:
    texts = uuids(np.arange(10_000)).to_pylist()
    assert [str(UUID(text)) for text in texts] == texts
    assert len(set(texts)) == 10_000
    assert sum(one < other for one, other in pairwise(texts)) == pytest.approx(5_000, abs=300)


def test_what_peers_run_imports_nothing_of_dolmen() -> None:
    for file in [*BENCH.glob("*.py"), *BENCH.glob("works/*.py"), BENCH.parent / "dataset.py"]:
        if file.name == "ours.py":
            continue
        names = [
            name
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
        ]
        assert not [name for name in names if name.split(".")[0] == "dolmen"], file


def test_the_versions_of_peers_that_are_not_installed_are_left_out(tmp_path: Path) -> None:
    assert versions(list(PEERS), tmp_path / "python") == {"pyarrow": pa.__version__}


def test_what_comes_after_a_loop_that_ran_out_of_time_is_not_compared() -> None:
    steps = [{"step": "commits", "done": 3, "wanted": 10, "seconds": 6.0}, {"step": "sums", "median": 0.1}]
    outcome = Outcome("folder", "commits", "iceberg", "done", steps)
    rate, sums = (line for line in LINES["Small commits of 100 rows"] if line.text in ("commits a second", SUMS))
    assert (comparable(rate, outcome), cell(rate, outcome)) == (0.5, "0.5")
    assert (comparable(sums, outcome), cell(sums, outcome)) == (None, "0.1 s")


def full(path: Path) -> Results:
    """Results with a figure for each line of the page, and one peer that is faster than dolmen."""
    results = Results(path, HEAD)
    for where in PLACES:
        for work in WORKS:
            for peer, took in (("dolmen", 1.0), ("lance", 0.5)):
                steps: list[dict[str, Any]] = [
                    {
                        "step": line.step,
                        "seconds": took,
                        "done": 2,
                        "first": took,
                        "last": took,
                        "bytes": 10**6,
                        "commits": 2,
                    }
                    | {"objects": 3, "peak_mb": 100, "own_peak_mb": 100, "appends": 2, "deletes": 1, "errors": {"E": 1}}
                    | {"commits": 2, "lost": 0, "revived": 0, "requests": {"GET": 4, "bytes_down": 9}}
                    for line in chain.from_iterable(LINES.values())
                    if line.work == work
                ]
                if "rounds" in work:
                    steps = [{"step": f"query {n}", "median": took, "requests": {"GET": n}} for n in range(3)]
                    steps += [{"step": f"stored {n}", "bytes": 1000} for n in range(3)]
                results.add(Outcome(where, work, peer, "done", steps))
    return results


def test_the_page_says_where_a_peer_is_faster_and_its_charts_can_be_drawn(tmp_path: Path) -> None:
    results = full(tmp_path / "results.jsonl")
    text = page.section(results)
    assert "| an upsert | 3 of 3 | UUID keys: upsert, on S3 with 30 ms to the first byte: 1 s | Lance, 2.0 x |" in text
    kinds = {line.kind for line in chain.from_iterable(LINES.values())}
    assert kinds - {""} == PRICES.keys(), "each kind says what it pays for"
    drawn = charts(results)
    assert [name for name, _, _ in drawn] == [
        "peers-deletes-folder.svg",
        "peers-deletes-s3.svg",
        "peers-deletes-s3-slow.svg",
        "peers-commits.svg",
        "peers-upsert.svg",
        "peers-rounds.svg",
    ]
    for name, title, svg in drawn:
        assert f"![{title}](assets/{name})" in text
        assert ElementTree.fromstring(svg).get("aria-label") == title
        assert "prefers-color-scheme: dark" in svg
    assert "4,000" not in text, "no figure that was not measured"


def test_docs_benchmarks_is_drawn_from_the_published_results() -> None:
    text = PAGE.read_text()
    assert updated(text, "", [page.section(page.published())]) == text, "python -m bench.peers.page"
