"""Bursts that do not fit one invocation, and files that kill theirs, by the template's defaults: no healthy file is
ever given up. The function and its database are real; queue, pollers and time are ``support.queue_model``."""

from __future__ import annotations

import json

import pytest

from dolmen.ingest.queues import OutgoingMessage
from support.event_builders import notification
from support.functions import World
from support.queue_model import Lambda, Pipeline
from support.template import TEMPLATE

MEGABYTE = 1_000_000
_DEATH = "ignore:No application metrics"
pytestmark = pytest.mark.filterwarnings(_DEATH)


def drop_all(world: World, pipeline: Pipeline, sizes: list[int]) -> list[str]:
    """Drops files of one row, whose events say that they have so many bytes; returns their names."""
    names = []
    for n, size in enumerate(sizes):
        record = world.drop(f"events/{n}.csv", f"id,user_id,kind\n{n},1,x\n")
        record["s3"]["object"]["size"] = size
        pipeline.queue.put([OutgoingMessage(json.dumps(notification(record)))])
        names.append(f"{n}.csv")
    return names


@pytest.mark.slow
@pytest.mark.parametrize(("files", "megabytes"), [(1000, 200), (200, 1000)], ids=["1,000 of 200 MB", "200 of 1 GB"])
def test_a_burst_is_ingested_without_a_dead_letter(world: World, files: int, megabytes: int) -> None:
    world.create()
    pipeline = Pipeline(world)
    drop_all(world, pipeline, [megabytes * MEGABYTE] * files)
    pipeline.run()
    assert world.ids() == list(range(files))
    assert pipeline.dead_files() == set()
    assert pipeline.deaths == 0
    # All pollers are busy until the end: nobody holds what another could read.
    assert pipeline.now < 1.2 * files * megabytes / pipeline.megabytes_per_second / pipeline.settings.concurrency


@pytest.mark.slow
def test_the_model_shows_what_became_of_a_burst_when_nothing_was_sent_anew(world: World) -> None:
    world.create()
    pipeline = Pipeline(world, sends_anew=False)
    drop_all(world, pipeline, [200 * MEGABYTE] * 400)
    pipeline.run()
    assert len(pipeline.dead_files()) > 50


@pytest.mark.slow
def test_a_file_that_kills_its_function_is_given_up_alone(world: World) -> None:
    world.create()
    pipeline = Pipeline(world, killers=frozenset({"37.csv"}))
    names = drop_all(world, pipeline, [MEGABYTE] * 300)
    pipeline.run()
    assert pipeline.dead_files() == {"37.csv"}
    assert world.ids() == [n for n in range(300) if names[n] != "37.csv"]
    assert pipeline.deaths == 4  # with its batch, with nine others, twice alone
    [letter] = pipeline.dead.messages.values()
    assert "died 4 times" in letter.attributes["dolmen.reason"]


@pytest.mark.slow
def test_several_killers_in_a_burst_take_nobody_with_them(world: World) -> None:
    world.create()
    killers = frozenset(f"{n}.csv" for n in (3, 4, 60, 130, 199))
    pipeline = Pipeline(world, killers=killers)
    drop_all(world, pipeline, [20 * MEGABYTE] * 200)
    pipeline.run()
    assert pipeline.dead_files() == killers
    assert len(world.ids()) == 200 - len(killers)


def test_a_file_of_more_than_the_template_allows_is_rejected_at_once_where_it_lies(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = TEMPLATE["Mappings"]["VisibilityTimeout"][str(Lambda.of_template("Ingest").timeout)]["FileBytes"]
    monkeypatch.setenv("DOLMEN_MAX_FILE_BYTES", allowed)
    world.create()
    pipeline = Pipeline(world)
    drop_all(world, pipeline, [*[200 * MEGABYTE] * 5, 20_000 * MEGABYTE, int(allowed)])
    pipeline.run()
    assert (pipeline.deaths, pipeline.dead_files()) == (0, set())
    assert world.ids() == [0, 1, 2, 3, 4, 6]
    [outcome] = world.log_entries("drop rejected")
    assert outcome["error"] == "LimitError"
    assert "20,000,000,000 bytes" in outcome["reason"]


@pytest.mark.slow
def test_a_file_too_large_for_the_time_out_is_given_up_alone(world: World) -> None:
    world.create()
    pipeline = Pipeline(world)
    drop_all(world, pipeline, [*[200 * MEGABYTE] * 50, 20_000 * MEGABYTE])
    pipeline.run()
    assert pipeline.dead_files() == {"50.csv"}
    assert world.ids() == list(range(50))
