"""``dolmen.infer``: inference for a path, a URL or an open file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from dolmen.errors import InputError, short_repr
from dolmen.format.dialect import parse_attributes
from dolmen.format.ingest_properties import parse_kind
from dolmen.ingest.formats.source_file import RewindableFile
from dolmen.ingest.inference.inference import Inference, infer_file
from dolmen.store import object_opener
from dolmen.store.base import split_object_url


def infer(
    source: str | Path | BinaryIO, *, storage_options: Mapping[str, str] | None = None, **given: Any
) -> Inference:
    """Infers how a file is meant to be read, and its columns: format, encoding, delimiter, header, types, and so on.

    Reads the whole file, in bounded memory. A type is inferred only if it gives back the text of all values.
    ``Inference.properties`` are settings for a table whose later files are read alike.

    Args:
        source: a path, the URL of an object (``s3://bucket/key``), or a binary file that can be rewound.
        storage_options: for an object in S3, as for ``open``.
        given: what is known: ``format="csv"``, and the attributes of ``Inference.dialect``, each as the property
            ``ingest_...`` takes it: ``delimiter=";"``, ``header=False``, ``encoding="latin-1"``.

    Raises:
        InputError: the file is not in a known format, is damaged, or has rows that fit no dialect; or ``given`` has an
            unknown name or value.
        ObjectNotFoundError: there is no such object.

    Examples:
        >>> found = dolmen.infer(pa.BufferReader(b"id;price\\n1;2,50\\n2;13,75\\n"), format="csv")
        >>> found.dialect.delimiter
        ';'
        >>> found.schema.names
        ['id', 'price']
    """
    kind = parse_kind(given.pop("format", None), "format=")
    known = parse_attributes(given)
    if storage_options is not None and not (isinstance(source, str) and split_object_url(source)):
        raise InputError("storage_options are for the URL of an object, s3://bucket/key")
    if isinstance(source, str | Path):
        name, open = opener(source, storage_options)
        return infer_file(open, name, kind=kind, known=known)
    if not (hasattr(source, "read") and hasattr(source, "seek")):
        raise InputError(f"source={short_repr(source)}: give a path, a URL, or a binary file that can be rewound")
    named = getattr(source, "name", None)
    name = Path(named).name if isinstance(named, str) else "the file"
    return infer_file(RewindableFile(source).reopen, name, kind=kind, known=known)


def opener(source: str | Path, storage_options: Mapping[str, str] | None = None) -> tuple[str, Callable[[], BinaryIO]]:
    """The name of a file or an object, and a function that opens it. Raises InputError for anything else."""
    if isinstance(source, str) and (open_object := object_opener(source, storage_options)) is not None:
        return source, open_object
    if isinstance(source, str) and "://" in source:
        raise InputError(f"{source!r}: give a path, or the URL of an object, s3://bucket/key")
    path = Path(source)
    if path.is_dir():
        raise InputError(f"{str(source)!r} is a directory: give a file in it")
    return str(source), lambda: path.open("rb")
