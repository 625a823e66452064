"""Requests name the account that owns the bucket, where it is known, so that S3 refuses a stranger's bucket."""

from __future__ import annotations

from typing import Any

import pytest

from dolmen.base.runtime import Runtime
from dolmen.errors import InputError
from dolmen.store.s3.bucket_store import S3Store
from dolmen.store.s3.connection import bucket_owners
from support.stores import PART_BYTES

OWNER = "111122223333"


def test_every_request_about_a_bucket_names_its_owner(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket, _, prefix = s3_url.removeprefix("s3://").partition("/")
    monkeypatch.setenv("DOLMEN_BUCKET_OWNERS", f"another=444455556666, {bucket}={OWNER}")
    store = S3Store(bucket, prefix, runtime=Runtime(), threshold_bytes=6 << 20, part_bytes=PART_BYTES)
    named: list[tuple[str, str | None]] = []
    sources: list[Any] = []

    def observe(request: Any, event_name: str, **_event: Any) -> None:
        owner = request.headers.get("x-amz-expected-bucket-owner")
        named.append((event_name.rpartition(".")[2], owner.decode() if isinstance(owner, bytes) else owner))
        if event_name.endswith("UploadPartCopy"):
            sources.append(request.headers.get("x-amz-source-expected-bucket-owner"))

    store.connection.client.meta.events.register("before-send.s3", observe)
    store.put("key", b"body")
    assert store.get("key").body == b"body"
    store.head("key")
    assert [info.key for info in store.list("")] == ["key"]
    with store.open_output("large") as output:
        for _ in range(3):
            output.write(bytes(4 << 20))
        output.commit()
    with store.open_output("copy") as output:
        output.copy("large", (0, 12 << 20), store.head("large").etag)
        output.commit()
    with store.open_input("large") as source:
        source.read(10)
    store.delete(["key", "large", "copy"])
    operations = {"PutObject", "GetObject", "HeadObject", "ListObjectsV2", "DeleteObjects"}
    operations |= {"CreateMultipartUpload", "UploadPart", "UploadPartCopy", "CompleteMultipartUpload"}
    assert {operation for operation, _ in named} >= operations
    assert {owner for _, owner in named} == {OWNER}
    assert {source.decode() if isinstance(source, bytes) else source for source in sources} == {OWNER}


@pytest.mark.parametrize("text", ["bucket", "bucket=", "=111122223333", "bucket=1", "a=111122223333 b=111122223333"])
def test_owners_that_are_no_accounts_are_refused_by_name(text: str) -> None:
    with pytest.raises(InputError, match="DOLMEN_BUCKET_OWNERS"):
        bucket_owners({"DOLMEN_BUCKET_OWNERS": text})


def test_no_owner_is_named_where_none_is_known() -> None:
    assert bucket_owners({}) == bucket_owners({"DOLMEN_BUCKET_OWNERS": ""}) == {}
