"""Opening stores by URL."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import dolmen
from dolmen.errors import InputError
from dolmen.store import LocalStore, MemoryBucket, MemoryStore, open_store
from dolmen.store.s3.bucket_store import S3Store
from support.stores import put


@pytest.mark.parametrize(
    ("url", "bucket", "prefix"),
    [
        ("s3://bucket", "bucket", ""),
        ("s3://bucket/", "bucket", ""),
        ("s3://bucket/a/b", "bucket", "a/b"),
        ("s3://bucket/a/b/", "bucket", "a/b"),
        ("s3://bucket//a/b", "bucket", "a/b"),
        ("s3://my.bucket-1/a b%20c+d?e#f=é", "my.bucket-1", "a b%20c+d?e#f=é"),
    ],
)
def test_an_s3_url_is_a_bucket_and_a_prefix_as_they_are(url: str, bucket: str, prefix: str) -> None:
    store = open_store(url)
    assert isinstance(store, S3Store)
    assert (store.bucket, store.prefix) == (bucket, prefix)
    again = open_store(store.url)
    assert isinstance(again, S3Store)
    assert (again.bucket, again.prefix, again.url) == (bucket, prefix, store.url)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "empty URL"),
        ("s3://", "bucket"),
        ("s3:///prefix", "bucket"),
        ("s3://b", "bucket"),
        ("s3://bucket name/x", "bucket"),
        ("s3://bucket/a//b", "empty"),
        ("s3://bucket/a/../b", "empty"),
        ("s3a://bucket/x", "'s3://bucket/x'"),
        ("s3n://bucket/x", "'s3://bucket/x'"),
        ("gs://bucket/x", "gs://"),
        ("http://host/x", "http://"),
        ("s3:bucket/x", "lacks the '//'"),
        ("file:x", "lacks the '//'"),
        ("file://host/x", "file:///directory"),
        ("file://", "file:///directory"),
        ("file:///", "file:///directory"),
    ],
)
def test_what_is_no_url_is_refused_with_what_to_write_instead(url: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        open_store(url)


def test_a_path_may_be_plain_relative_of_a_home_or_a_file_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    directory = tmp_path / "a dir" / "é%20"
    urls = [
        "a dir/é%20",
        "~/a dir/é%20",
        str(directory),
        directory,
        f"{directory}/",
        directory.as_uri(),
        "./a dir/é%20",
    ]
    roots = set()
    for url in [*urls, f"file://localhost{directory.as_uri().removeprefix('file://')}"]:
        store = open_store(url)
        assert isinstance(store, LocalStore)
        roots.add(store.root)
        again = open_store(store.url)
        assert isinstance(again, LocalStore)
        assert again.root == store.root
    assert roots == {str(directory)}


def test_a_memory_url_names_one_bucket_of_the_process() -> None:
    put(open_store("memory://of-this-test"), "x", b"1")
    assert open_store("memory://of-this-test/").get("x").body == b"1"
    assert list(open_store("memory://another").list("")) == []
    assert list(MemoryStore().list("")) == []


def test_clients_of_one_memory_bucket_share_its_objects_and_its_clock() -> None:
    bucket = MemoryBucket(clock_us=lambda: 42)
    mine, theirs = MemoryStore(bucket), MemoryStore(bucket)
    put(mine, "x")
    assert theirs.head("x").last_modified_us == 42
    assert (mine.clock.now_us, theirs.clock.now_us) == (42, 42)


def test_equal_bodies_have_equal_etags_in_memory_as_on_s3_so_that_aba_would_show() -> None:
    store = MemoryStore()
    first = put(store, "pointer", b"A")
    second = store.put("pointer", b"B", if_match=first)
    third = store.put("pointer", b"A", if_match=second.etag)  # type: ignore[union-attr]
    assert third.etag == first  # type: ignore[union-attr]


def test_stores_are_opened_without_importing_botocore_until_s3_is_asked_for() -> None:
    code = """if 1:
        import sys, dolmen.store
        dolmen.store.open_store("/tmp"), dolmen.store.open_store("memory://x")
        assert not {"boto3", "botocore"} & set(sys.modules)
        sys.modules["botocore"] = None
        try:
            dolmen.store.open_store("s3://bucket/x")
        except dolmen.errors.InputError as error:
            print(error)
    """
    answer = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "pip install 'dolmen[aws]'" in answer.stdout


def test_stores_of_one_runtime_and_environment_share_their_connection(
    s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = open_store(s3_url), open_store(s3_url + "/elsewhere")
    assert isinstance(one, S3Store)
    assert isinstance(two, S3Store)
    assert one.connection is two.connection
    database = dolmen.open(s3_url)._context.store
    assert isinstance(database, S3Store)
    assert database.connection is one.connection, "a connection takes 0.1 s of processor time to make"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody-else")
    three = open_store(s3_url)
    assert isinstance(three, S3Store)
    assert three.connection is not one.connection


@pytest.mark.slow
def test_the_region_is_the_configured_one_or_us_east_1(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def region() -> str:
        store = open_store(s3_url)
        assert isinstance(store, S3Store)
        return str(store.connection.client.meta.region_name)

    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert region() == "eu-west-1"
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    assert region() == "eu-north-1"
    monkeypatch.delenv("AWS_REGION")
    assert region() == "us-east-1"


@pytest.mark.parametrize("host", ["localhost:9000", "minio.example.org", "10.0.0.1"])
def test_an_endpoint_of_ones_own_is_spoken_to_in_path_style(
    s3_url: str, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://{host}")
    store = open_store("s3://bucket/prefix")
    assert isinstance(store, S3Store)
    url = store.connection.client.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "key"})
    assert url.startswith(f"http://{host}/bucket/key?")


def test_aws_itself_is_spoken_to_with_the_bucket_in_the_host_name(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name)
    store = open_store("s3://bucket/prefix")
    assert isinstance(store, S3Store)
    url = store.connection.client.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "key"})
    assert url.startswith("https://bucket.s3.amazonaws.com/key?")
