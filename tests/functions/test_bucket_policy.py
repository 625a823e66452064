"""The policy of the database's bucket lets through all that dolmen does, and nothing that it never does.

Every request of a whole life is recorded on the wire and judged by the statements of template.yaml.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

import pytest

from support.functions import World
from support.proxy import Proxy, Request
from support.template import as_list, deployed

BUCKET = "${DatabaseBucket.Arn}"
STATEMENTS = deployed().properties("DatabaseBucketPolicy")["PolicyDocument"]["Statement"]
COLLECTED = [one["Fn::Sub"] for one in deployed().resources_of("GcRole", "Collect")]


def is_among(place: str, resources: Any) -> bool:
    """Whether an object is one of a statement's resources."""
    return any(fnmatchcase(place, one["Fn::Sub"]) for one in as_list(resources))


def denied(method: str, key: str, condition: str | None, *, creates: bool = True) -> list[str]:
    """The statements that refuse a request."""
    action = "s3:DeleteObject" if method == "DELETE" else "s3:PutObject"
    headers = {f"s3:{condition.partition(':')[0].lower()}"} if condition else set[str]()

    def applies(statement: dict[str, Any]) -> bool:
        if action not in as_list(statement["Action"]):
            return False
        place = f"{BUCKET}/{key}"
        if "NotResource" in statement and is_among(place, statement["NotResource"]):
            return False
        if "Resource" in statement and not is_among(place, statement["Resource"]):
            return False
        conditions = statement.get("Condition", {})
        if "Bool" in conditions and not creates:
            return False
        return not any(name in headers for name in conditions.get("Null", {}))

    return [one["Sid"] for one in STATEMENTS if one["Sid"] != "OnlyTls" and applies(one)]


def writes(requests: list[Request]) -> Iterator[tuple[Request, bool]]:
    """Requests that write or delete, each with whether it creates an object."""
    for request in requests:
        if request.method in ("PUT", "DELETE") or (request.method == "POST" and "delete" not in request.query):
            yield request, "uploads" not in request.query.split("=")[0] and "partNumber" not in request.query


@pytest.mark.slow
def test_all_requests_of_a_life_pass_and_hardly_anything_is_ever_replaced(s3_world: World, proxy: Proxy) -> None:
    world = s3_world
    world.create()
    for n in range(6):
        assert world.ingest(world.drop(f"events/{n}.csv", f"id,user_id,kind\n{n},1,x\n")) == []
    assert world.delete({"table": "events", "keys": [1]}) == []
    world.database.set(erase_within="1s", erasure_memory="1s")
    world.database.table("events").set(iceberg="v2")
    for user in (2, 3):
        erase = {"table": "events", "where": {"id": user}}
        assert world.delete({"erase": erase, "request_id": f"erasure-{user}"}) == []
        world.call("compact")
    for _ in range(3):
        world.call("gc")
    prefix = world.url.partition("://")[2].partition("/")[2]
    seen = [pair for pair in writes(proxy.requests()) if pair[0].key.startswith(prefix)]
    assert len(seen) > 20
    for request, creates in seen:
        assert denied(request.method, request.key, request.condition, creates=creates) == [], request
    replaced = {request.key for request, _ in seen if (request.condition or "").lower().startswith("if-match")}
    kinds = Counter(key.removeprefix(f"{prefix}/").partition("/")[0] for key in replaced)
    assert kinds.keys() == {"_latest_manifest", "receipt", "iceberg"}
    assert all(key.endswith("/metadata/version-hint.text") for key in replaced if "/iceberg/" in key)


@pytest.mark.parametrize(
    ("method", "key", "condition", "by"),
    [
        ("PUT", "dolmen/data/t/a.parquet", None, ["OnlyNewObjects"]),
        ("PUT", "dolmen/data/t/a.parquet", 'If-Match: "e"', ["OnlyNewObjects"]),
        ("PUT", "dolmen/data/t/a.parquet", "If-None-Match: *", []),
        ("PUT", "dolmen/_latest_manifest", None, ["OnlyComparedPointers"]),
        ("PUT", "dolmen/_latest_manifest", "If-None-Match: *", []),
        ("PUT", "dolmen/_latest_manifest", 'If-Match: "e"', []),
        ("PUT", "another/database/_latest_manifest", 'If-Match: "e"', []),
        ("PUT", "dolmen/receipt/0123.json", 'If-Match: "e"', []),
        ("PUT", "dolmen/receipt/0123.json", None, ["OnlyComparedPointers"]),
        ("PUT", "dolmen/iceberg/t/metadata/version-hint.text", 'If-Match: "e"', []),
        ("PUT", "dolmen/iceberg/t/metadata/version-hint.text", None, ["OnlyComparedPointers"]),
        ("PUT", "dolmen/iceberg/t/metadata/v1.metadata.json", 'If-Match: "e"', ["OnlyNewObjects"]),
        ("DELETE", "dolmen/_latest_manifest", None, ["NobodyDeletesPointers"]),
        ("DELETE", "dolmen/data/t/a.parquet", None, []),
    ],
)
def test_what_the_policy_refuses(method: str, key: str, condition: str | None, by: list[str]) -> None:
    assert denied(method, key, condition) == by


@pytest.mark.parametrize("folder", ["data", "tombstone", "segment", "manifest", "intent", "iceberg"])
def test_gc_deletes_in_the_folders_of_a_database_and_nowhere_else(folder: str) -> None:
    assert f"arn:${{AWS::Partition}}:s3:::${{DatabaseBucketName}}/${{DatabasePrefix}}/{folder}/*" in COLLECTED
    assert len(COLLECTED) == 6
