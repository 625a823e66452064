"""Every malformed file is refused with the right error, place and reason, however it is cut into blocks."""

from __future__ import annotations

import gzip
import io
from collections import Counter

import pytest

from dolmen.errors import InputError, RowError
from dolmen.ingest.formats.formats import SourceFile, detect, read
from dolmen.ingest.formats.source_file import BLOCK_BYTES
from support.malformed_files import MALFORMED_FILES, MalformedFile


def _error(file: MalformedFile, name: str, data: bytes, block_bytes: int) -> InputError:
    with pytest.raises(InputError) as caught:
        read(SourceFile(lambda: io.BytesIO(data), detect(name), name, block_bytes=block_bytes), file.schema).read_all()
    return caught.value


def _assert_says(error: InputError, file: MalformedFile, name: str) -> None:
    assert name in str(error)
    assert file.reason in str(error)
    if file.row is None and file.line is None:
        assert not isinstance(error, RowError)
    else:
        assert isinstance(error, RowError)
        assert (error.file, error.line, error.row, error.column) == (name, file.line, file.row, file.column)


def test_the_corpus_is_broad() -> None:
    causes = Counter(file.cause for file in MALFORMED_FILES)
    assert len(MALFORMED_FILES) >= 300
    assert len(causes) >= 30
    assert len({file.name for file in MALFORMED_FILES}) == len(MALFORMED_FILES)


@pytest.mark.parametrize("file", MALFORMED_FILES, ids=lambda file: file.name)
@pytest.mark.parametrize("block_bytes", [BLOCK_BYTES, 64, 5])
def test_a_malformed_file_is_refused_with_its_place_and_reason(file: MalformedFile, block_bytes: int) -> None:
    if block_bytes < BLOCK_BYTES and len(file.data) > 2_000:
        block_bytes = 997  # thousands of blocks prove no more than hundreds
    _assert_says(_error(file, file.name, file.data, block_bytes), file, file.name)


@pytest.mark.parametrize(
    "file", [file for file in MALFORMED_FILES if file.line is not None], ids=lambda file: file.name
)
def test_compression_does_not_change_the_error(file: MalformedFile) -> None:
    name = f"{file.name}.gz"
    _assert_says(_error(file, name, gzip.compress(file.data), BLOCK_BYTES), file, name)
