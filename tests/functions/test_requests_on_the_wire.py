"""What a batch costs, as a proxy outside the process sees it."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from support.functions import World
from support.proxy import Proxy

HEAD = "id,user_id,kind\n"


def kinds(proxy: Proxy) -> Counter[str]:
    """Requests by method and the first part of the key below the database, ``landing/`` or ``rejected/``."""
    return Counter(
        f"{request.method} {request.key.removeprefix('some/prefix/').partition('/')[0]}" for request in proxy.requests()
    )


def test_a_warm_batch_of_files_is_one_put_each_and_two_for_the_commit(s3_world: World, proxy: Proxy) -> None:
    s3_world.create()
    assert s3_world.ingest(s3_world.drop("events/warm.csv", f"{HEAD}0,0,x\n")) == []
    later = {"eventTime": (datetime.now(UTC) + timedelta(hours=1)).isoformat()}  # than the table was created
    records = [{**s3_world.drop(f"events/{n}.csv", f"{HEAD}{n},1,x\n"), **later} for n in (1, 2, 3)]
    proxy.forget_requests()
    assert s3_world.ingest(*records) == []
    assert kinds(proxy) == {
        "GET _latest_manifest": 1,
        "GET landing": 3,
        "PUT data": 3,
        "PUT manifest": 1,
        "PUT _latest_manifest": 1,
    }
    proxy.forget_requests()
    assert s3_world.ingest(*records) == []  # a batch that was applied before
    assert kinds(proxy) == {"GET _latest_manifest": 1}


def test_a_warm_batch_of_deletes_is_three_puts(s3_world: World, proxy: Proxy) -> None:
    s3_world.create()
    assert s3_world.delete({"table": "events", "keys": [0]}, ids=["warm"]) == []
    proxy.forget_requests()
    bodies = [{"table": "events", "where": f"id = {n} AND kind <> 'y'"} for n in range(20)]
    assert s3_world.delete(*bodies) == []
    assert kinds(proxy) == {
        "GET _latest_manifest": 1,
        "PUT tombstone": 1,
        "PUT manifest": 1,
        "PUT _latest_manifest": 1,
    }


def test_a_batch_for_a_new_table_costs_what_any_batch_costs(s3_world: World, proxy: Proxy) -> None:
    """Another delivery may have rejected its files. The commits decide between them, without a request more."""
    s3_world.create()
    records = [s3_world.drop(f"events/{n}.csv", f"{HEAD}{n},1,x\n") for n in (1, 2, 3)]
    assert s3_world.ingest(*records) == []
    asked = kinds(proxy)
    assert (asked["HEAD rejected"], asked["GET rejected"]) == (0, 0)


@pytest.mark.slow
def test_a_file_that_waits_for_its_table_is_not_read(s3_world: World, proxy: Proxy) -> None:
    s3_world.create("others")
    record = s3_world.drop("events/1.csv", f"{HEAD}1,1,x\n")
    proxy.forget_requests()
    assert s3_world.ingest(record) == ["message-0"]
    asked = kinds(proxy)
    assert (asked["GET landing"], sum(count for kind, count in asked.items() if kind.startswith("PUT"))) == (0, 0)
