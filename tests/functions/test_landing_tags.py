"""What becomes of a file in the landing place once its rows are in the table."""

from __future__ import annotations

from typing import Any

import pytest

from dolmen.errors import Error, LimitError
from dolmen.ingest.announcements import Drop
from dolmen.ingest.landing import Landing, apply_landing_policy
from dolmen.store.base import Stored
from support.functions import World
from support.ministack import boto3_client

KEY = "landing/events/a.csv"


@pytest.fixture
def s3(ministack: str) -> Any:
    return boto3_client("s3", ministack)


def dropped(world: World, body: bytes = b"id\n1\n", key: str = KEY) -> Drop:
    outcome = world.landing.put(key, body)
    assert isinstance(outcome, Stored)
    return Drop(world.bucket, key, len(body), outcome.etag.strip('"'))


def overwrite(world: World, body: bytes) -> None:
    assert isinstance(world.landing.put(KEY, body, if_match=world.landing.head(KEY).etag), Stored)


def tags(s3: Any, world: World, version: str | None = None) -> dict[str, str]:
    named = {} if version is None else {"VersionId": version}
    found = s3.get_object_tagging(Bucket=world.bucket, Key=KEY, **named)["TagSet"]
    return {tag["Key"]: tag["Value"] for tag in found}


def tag(s3: Any, world: World, **values: str) -> None:
    tag_set = [{"Key": name, "Value": value} for name, value in values.items()]
    s3.put_object_tagging(Bucket=world.bucket, Key=KEY, Tagging={"TagSet": tag_set})


@pytest.mark.parametrize(("policy", "value"), [("tag", "ingested"), ("expire", "expire")])
def test_an_object_is_tagged_beside_the_tags_it_has(s3_world: World, s3: Any, policy: Any, value: str) -> None:
    landing, drop = Landing(s3_world.url), dropped(s3_world)
    tag(s3, s3_world, owner="someone")
    for _ in range(2):
        apply_landing_policy(landing, drop, policy)
        assert tags(s3, s3_world) == {"owner": "someone", "dolmen-landing": value}
    assert s3_world.landing.get(KEY).body == b"id\n1\n"


def test_an_object_that_is_to_be_kept_costs_no_request(world: World) -> None:
    landing = Landing(world.url, url="s3://nowhere-at-all")
    apply_landing_policy(landing, Drop("b", KEY, 1, "e"), "keep")
    with pytest.raises(Error):
        apply_landing_policy(landing, Drop("b", KEY, 1, "e"), "tag")


def test_an_object_with_ten_tags_is_left_as_it_is(s3_world: World, s3: Any) -> None:
    drop = dropped(s3_world)
    ten = {f"tag{n}": "x" for n in range(10)}
    tag(s3, s3_world, **ten)
    with pytest.raises(LimitError, match="has 10 tags"):
        apply_landing_policy(Landing(s3_world.url), drop, "tag")
    assert tags(s3, s3_world) == ten
    ours = {**dict(list(ten.items())[1:]), "dolmen-landing": "ingested"}
    tag(s3, s3_world, **ours)
    apply_landing_policy(Landing(s3_world.url), drop, "expire")
    assert tags(s3, s3_world) == {**ours, "dolmen-landing": "expire"}


def test_the_version_that_was_ingested_is_tagged_and_no_other(s3_world: World, s3: Any) -> None:
    s3.put_bucket_versioning(Bucket=s3_world.bucket, VersioningConfiguration={"Status": "Enabled"})
    first, second = (
        s3.put_object(Bucket=s3_world.bucket, Key=KEY, Body=body)["VersionId"] for body in (b"id\n1\n", b"id\n2\n")
    )
    apply_landing_policy(Landing(s3_world.url), Drop(s3_world.bucket, KEY, 5, "", first), "tag")
    assert tags(s3, s3_world, first) == {"dolmen-landing": "ingested"}
    assert tags(s3, s3_world, second) == {}


@pytest.mark.slow
def test_an_object_that_was_overwritten_or_removed_gets_no_tag(s3_world: World, s3: Any) -> None:
    landing, drop = Landing(s3_world.url), dropped(s3_world)
    overwrite(s3_world, b"id\n2\n")
    apply_landing_policy(landing, drop, "expire")
    assert tags(s3, s3_world) == {}
    s3_world.landing.delete([KEY])
    apply_landing_policy(landing, drop, "expire")


def test_a_tag_that_meets_an_object_that_came_meanwhile_is_taken_off_it(s3_world: World, s3: Any) -> None:
    """The new object comes between the look at the key and the tag, which has no condition."""
    landing, drop = Landing(s3_world.url), dropped(s3_world)
    store: Any = landing.store(drop)
    set_tags = store.set_tags

    def overwritten_before(*args: Any, **options: Any) -> None:
        store.set_tags = set_tags
        overwrite(s3_world, b"id\n2\n")
        tag(s3, s3_world, owner="someone")
        set_tags(*args, **options)

    store.set_tags = overwritten_before
    apply_landing_policy(landing, drop, "expire")
    assert "dolmen-landing" not in tags(s3, s3_world)


def test_in_a_directory_only_expire_does_something_and_that_is_removal(world: World) -> None:
    landing, drop = Landing(world.url, url=world.landing.url), dropped(world, b"id\n1\n")
    apply_landing_policy(landing, drop, "tag")
    assert world.landing.get(KEY).body == b"id\n1\n"
    for _ in range(2):
        apply_landing_policy(landing, drop, "expire")
        assert list(world.landing.list("")) == []


@pytest.mark.parametrize("size", [10, 10_000])
def test_a_file_that_was_overwritten_is_not_removed(world: World, size: int) -> None:
    landing, drop = Landing(world.url, url=world.landing.url), dropped(world, b"1" * size)
    overwrite(world, b"2" * size)
    apply_landing_policy(landing, drop, "expire")
    assert [(info.key, info.size) for info in world.landing.list("")] == [(KEY, size)]
    assert world.landing.get(KEY).body == b"2" * size


def test_a_file_that_a_crash_left_aside_comes_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends between setting the file aside and looking at it; the file is another one by then."""
    landing, drop = Landing(world.url, url=world.landing.url), dropped(world)
    overwrite(world, b"id\n2\n")
    store: Any = landing.store(drop)
    with monkeypatch.context() as patch:
        patch.setattr(store, "head", lambda key: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            apply_landing_policy(landing, drop, "expire")
    assert [info.key for info in world.landing.list("")] != [KEY]
    apply_landing_policy(landing, drop, "expire")
    assert [info.key for info in world.landing.list("")] == [KEY]
    assert world.landing.get(KEY).body == b"id\n2\n"
