"""The simulation's judge notices a row that is of another partition than its file says."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dolmen import Database
from dolmen.base.runtime import Runtime
from dolmen.entries.partitions import PartitionSpec
from dolmen.store.memory import MemoryBucket, MemoryStore
from dolmen_simulator.judge.layout import check_partitions
from dolmen_simulator.judge.never import Never, ViolationError


@pytest.mark.parametrize("terms", ["v", "bucket[3](k)", "truncate[20](v)", "hour(t), bucket[2](k)"])
def test_a_row_of_another_partition_is_noticed(terms: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = MemoryBucket()
    table = Database(MemoryStore(bucket, Runtime()), Runtime()).create_table(
        "t", pa.schema([("k", pa.int64()), ("v", pa.int64()), ("t", pa.timestamp("us"))]), partition_by=terms
    )
    numbers = list(range(-30, 30))
    times = pa.array([number * 10**9 for number in numbers], pa.timestamp("us"))
    table.append(pa.table({"k": numbers, "v": [None, *numbers[1:]], "t": times}))
    files = table.files().num_rows
    assert check_partitions(table, bucket, "now") == files > 1
    of_file = PartitionSpec.of_file
    first = next(iter(table._entry.files))
    monkeypatch.setattr(PartitionSpec, "of_file", lambda spec, file: of_file(spec, first))
    with pytest.raises(ViolationError) as error:
        check_partitions(table, bucket, "now")
    assert error.value.never is Never.MISPLACED
