"""``storage_options``: two accounts in one process, whose secrets are shown and stored nowhere."""

from __future__ import annotations

import gc
import logging
import pickle
from typing import Any

import boto3
import pytest
from botocore.exceptions import UnknownServiceError

import dolmen
from dolmen import dbapi
from dolmen.errors import Error, InputError
from dolmen.store.s3.connection import AwsSession, _connections_by_options

SECRET, KEY = "hidden-secret-value", "AKIDHIDDENKEYVALUE"


@pytest.fixture
def elsewhere(s3_url: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """A URL and its endpoint, in a process whose AWS configuration is another account's."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "account")
    return s3_url, s3_endpoint


def options(endpoint: str, **more: str) -> dict[str, str]:
    return {"aws_access_key_id": "test", "aws_secret_access_key": "testtest", "aws_endpoint_url": endpoint, **more}


@pytest.mark.slow
def test_a_handle_has_settings_of_its_own(elsewhere: tuple[str, str]) -> None:
    url, endpoint = elsewhere
    db = dolmen.open(url, storage_options=options(endpoint, AWS_REGION="eu-central-1"))
    db.create_table("t", {"n": [1, 2]}).append({"n": [3]})
    assert db.table("t").count() == 3
    assert db._context.store.connection.client.meta.region_name == "eu-central-1"  # type: ignore[attr-defined]
    upper = {name.upper().removeprefix("AWS_"): value for name, value in options(endpoint).items()}
    assert dolmen.open(url, storage_options=upper).table("t").count() == 3
    connection = dbapi.connect(url, storage_options=options(endpoint))
    assert connection.cursor().execute("SELECT count(*) FROM t").fetchone() == (3,)
    assert dolmen.verify(url, storage_options=options(endpoint)).findings == ()
    [first, _] = db.table("t").files()["path"].to_pylist()
    assert dolmen.infer(f"{url}/{first}", storage_options=options(endpoint)).schema.names == ["n"]
    with pytest.raises(Error):
        dolmen.open(url).tables()


@pytest.mark.slow
def test_copy_reaches_objects_as_the_database_is_reached_or_by_options_of_their_own(elsewhere: tuple[str, str]) -> None:
    url, endpoint = elsewhere
    theirs = dolmen.open(url, storage_options=options(endpoint))
    ours = dolmen.open(f"memory://copy-{url}")
    for db, files in ((theirs, [url]), (ours, {f"{url}/out/": options(endpoint), "/": None})):
        db.sql("CREATE TABLE t (n INT, s VARCHAR)")
        for name in ("t.csv", "t.parquet", "t.jsonl.gz", "t.arrow"):
            file = f"{url}/out/{db is ours}-{name}"
            copy = f"COPY (SELECT 1 AS n, 'a' AS s UNION ALL SELECT 2, NULL) TO '{file}'"
            with pytest.raises(InputError, match="must be alone"):
                db.sql(f"DELETE FROM t; {copy}", files=files)
            assert db.sql(copy, files=files).fetchall() == [(2,)]
            with pytest.raises(InputError, match=rf"{name} exists"):
                db.sql(copy, files=files)
            assert db.sql("COPY t FROM ?", [file], files=files).counts.rows_added == 2
        assert db.sql("SELECT n, s FROM t GROUP BY ALL ORDER BY n").fetchall() == [(1, "a"), (2, None)]
    for files in ([url], {url: None}, {url: {"nope": SECRET}}, {url: options(endpoint), f"{url}/out": {}}):
        with pytest.raises(Error) as refused:
            ours.sql(f"COPY t FROM '{url}/out/False-t.csv'", files=files)
        assert SECRET not in str(refused.value)


@pytest.mark.slow
def test_handles_with_equal_options_share_a_connection_while_there_are_any(elsewhere: tuple[str, str]) -> None:
    url, endpoint = elsewhere
    handles = [dolmen.open(url, storage_options=options(endpoint)) for _ in range(3)]
    others = [dolmen.open(url, storage_options=options(endpoint, aws_region=region)) for region in ("a-1", "b-1")]
    connections = [each._context.store.connection for each in (*handles, *others)]  # type: ignore[attr-defined]
    assert len(set(map(id, connections))) == 3
    kept = {key for key, value in _connections_by_options.items() if any(value is each for each in connections)}
    assert len(kept) == 3
    del handles, others, connections
    gc.collect()
    assert not kept & set(_connections_by_options), "no secret stays when its last handle has gone"


@pytest.mark.filterwarnings("ignore")
def test_no_secret_is_shown_stored_or_handed_over(elsewhere: tuple[str, str], caplog: pytest.LogCaptureFixture) -> None:
    url, endpoint = elsewhere
    caplog.set_level(logging.DEBUG, logger="dolmen")
    own = options(endpoint, aws_access_key_id=KEY, aws_secret_access_key=SECRET, aws_session_token=SECRET + "t")
    db = dolmen.open(url, storage_options=own)
    said = [repr(db), repr(db._context.store), str(getattr(db._context.store, "options", "")), db.url]
    for call in (
        lambda: pickle.dumps(db),
        lambda: db.table("t").count(),
        lambda: dolmen.open(url, storage_options={**own, "aws_endpoint_url": "not a url"}).tables(),
        lambda: dolmen.open(url, storage_options={**own, "aws_profile": "missing"}),
        lambda: dolmen.open(url, storage_options={**own, "nope": SECRET}),
        lambda: dolmen.open("/tmp/x", storage_options=own),
    ):
        try:
            call()
        except Error as error:
            said.append(f"{error!r} {error} {error.__cause__!r}")
    assert len(said) >= 9
    everything = " ".join([*said, caplog.text])
    assert SECRET not in everything
    assert KEY not in everything
    with pytest.raises(InputError, match="stay in this process"):
        pickle.dumps(db)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"nope": "x"}, "'nope' is unknown"),
        ({"region": "a", "aws_region": "b"}, "given twice"),
        ({"aws_access_key_id": "a"}, "go together"),
        ({"aws_secret_access_key": "a"}, "go together"),
        ({"aws_session_token": "a"}, "goes with"),
        ({"aws_region": 3}, "aws_region is not text"),
        ({"aws_region": ""}, "aws_region is not text"),
        ("aws_region=x", "is a str"),
        ({3: "x"}, "3 is unknown"),
    ],
)
def test_wrong_options_are_refused(wrong: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        dolmen.open("s3://bucket/prefix", storage_options=wrong)


@pytest.mark.parametrize("url", ["memory://x", "file:///tmp/x", "/tmp/x", "x"])
def test_options_are_for_s3(url: str) -> None:
    with pytest.raises(InputError, match="storage_options are for s3://"):
        dolmen.open(url, storage_options={})
    with pytest.raises(InputError, match="storage_options"):
        dolmen.infer(url, storage_options={})
    with pytest.raises(InputError, match="storage_options are for s3://"):
        dolmen.verify(url, storage_options={})


@pytest.mark.parametrize(
    ("service", "kind"), [("s3", "service-2"), ("s3", "endpoint-rule-set-1"), ("sqs", "service-2")]
)
def test_models_of_services_are_those_that_botocore_reads(service: str, kind: str) -> None:
    ours, theirs = (
        each._session.get_component("data_loader") for each in (AwsSession(region_name="eu-west-1"), boto3.Session())
    )
    assert type(ours.file_loader) is not type(theirs.file_loader)
    assert ours.load_service_model(service, kind) == theirs.load_service_model(service, kind)
    assert ours.load_data("endpoints") == theirs.load_data("endpoints")
    with pytest.raises(UnknownServiceError):
        ours.load_service_model("nothing", kind)
