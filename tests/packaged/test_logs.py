"""What the packaged functions write to their logs."""

from __future__ import annotations

import json

import pytest

from dolmen import Database
from support.event_builders import sqs_event
from support.history import ids
from support.landing import drop
from support.rie import Start

HEAD = "id,user_id,kind\n"


@pytest.mark.slow
def test_no_value_of_the_data_is_in_the_log(database: Database, start: Start, ministack: str, s3_url: str) -> None:
    good = drop(ministack, s3_url, "good.csv", f"{HEAD}771,1,secretvalue\n")
    bad = drop(ministack, s3_url, "bad.csv", f"{HEAD}771,1,secretvalue\nsecretnumber,1,x\n")
    ingest, delete = start("ingest", POWERTOOLS_LOG_LEVEL="DEBUG"), start("delete", POWERTOOLS_LOG_LEVEL="DEBUG")
    for event in (good, bad):
        assert ingest.invoke(event).payload == {"batchItemFailures": []}
    bodies = [
        {"table": "events", "where": "kind = 'secretvalue'"},
        {"table": "events", "where": "nosuchcolumn = 'secretvalue'"},
        {"table": "events", "keys": ["secretnumber"]},
        json.dumps({"table": "events", "where": {"kind": "secretvalue"}})[:-1],
    ]
    assert len(delete.invoke(sqs_event(bodies)).payload["batchItemFailures"]) == 3
    assert ids(database) == []
    for running in (ingest, delete):
        assert running.logged()
        assert "secret" not in running.log.read_text()
