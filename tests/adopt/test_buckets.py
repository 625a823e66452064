"""Files of another bucket, on a real S3 server: read where they are, never written, and pinned while they are read."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dolmen
from dolmen.errors import CorruptionError
from dolmen.store.s3.bucket_store import S3Store


def put(store: S3Store, key: str, table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=20_000, compression="none")
    body = sink.getvalue().to_pybytes()
    store.put(key, body)
    return body


@pytest.mark.slow
def test_files_of_another_bucket_become_a_table(s3_url: str) -> None:
    store = S3Store(s3_url.removeprefix("s3://").partition("/")[0] + "-lake")
    store.connection.client.create_bucket(Bucket=store.bucket)
    bodies = {
        key: put(store, key, pa.table({"id": range(first, first + 100_000), "key": [key] * 100_000}))
        for first, key in ((0, "events/day=1/ä +%?#&.parquet"), (100_000, "events/2.parquet"))
    }
    bodies["events/day=1/_SUCCESS"] = b"x"
    store.put("events/day=1/_SUCCESS", b"x")
    db = dolmen.open(s3_url)
    with pytest.raises(dolmen.errors.AdoptionError, match="column 'day'"):
        db.adopt("t", f"s3://{store.bucket}/events")
    names = [f"s3a://{store.bucket}/{key}" for key in bodies if key.endswith(".parquet")]
    put(store, "events/1.parquet", pq.read_table(pa.BufferReader(bodies["events/day=1/ä +%?#&.parquet"])))
    names[0] = f"s3a://{store.bucket}/events/1.parquet"
    assert db.adopt("t", names, "id").rows == 200_000
    table = db.table("t")
    assert table.count("id >= 99990 AND id < 100010") == 20
    table.delete("id % 2 = 0")
    db.maintain()
    assert table.count() == 100_000
    assert db.verify(deep=True).ok
    table.set(iceberg="v2")
    assert table.publish_iceberg().files == 2
    assert {key: store.get(key).body for key in bodies} == bodies
    assert len(list(store.list(""))) == len(bodies) + 1

    scan = table.scan().to_batches()
    next(iter(scan))
    reopened = dolmen.open(s3_url).table("t")
    assert reopened.count("id < 10") == 5
    store.delete(["events/1.parquet"])
    put(store, "events/1.parquet", pa.table({"id": range(100_000), "key": ["?"] * 100_000}))
    for other in (reopened, dolmen.open(s3_url).table("t")):
        with pytest.raises(CorruptionError, match=f"s3://{store.bucket}/events/1.parquet.*was changed"):
            other.scan(where="id < 50000").to_arrow()
