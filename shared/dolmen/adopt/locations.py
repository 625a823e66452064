"""Places of files to adopt: URLs and keys as people and Iceberg's metadata write them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote

from dolmen.base import arguments
from dolmen.errors import InputError
from dolmen.format.adopted_files import OWN, AdoptedPath, ColumnsBy
from dolmen.rows.scan.read.byte_ranges import check_same_kind
from dolmen.store.base import FILE, SCHEMES, ObjectInfo, ObjectStore, own_name, scheme_of

RESERVED = frozenset(
    (
        "data",
        "handed",
        "iceberg",
        "index",
        "intent",
        "landing",
        "manifest",
        "receipt",
        "rejected",
        "segment",
        "tombstone",
    )
)
"""The first parts of names in a database whose objects dolmen moves or deletes."""

HIDDEN = ("_", ".")
"""The first characters of names of files and folders without rows, such as ``_SUCCESS``."""


@dataclass(frozen=True)
class FilePlace:
    """A file, or a folder of files.

    Args:
        store: the store that it is in.
        scheme, root, key: as in ``AdoptedPath``.
    """

    store: ObjectStore
    scheme: str
    root: str
    key: str

    @property
    def label(self) -> str:
        """Its name in messages."""
        return AdoptedPath("ids", self.scheme, self.root, self.key, "").label

    def beside(self, key: str) -> FilePlace:
        """Another key in the same store."""
        return FilePlace(self.store, self.scheme, self.root, key)

    def path(self, columns_by: ColumnsBy, uuid: str) -> str:
        """The path of the adopted file in its entry."""
        return AdoptedPath(columns_by, self.scheme, self.root, self.key, uuid).encode()

    @property
    def is_reserved(self) -> bool:
        """True for an object of the database itself, which dolmen may delete."""
        return self.scheme == OWN and self.key.partition("/")[0] in RESERVED

    @property
    def is_data_of_iceberg(self) -> bool:
        """True for the folder ``data`` beside the metadata of an Iceberg table. Costs one LIST if it has that name."""
        folder, _, name = self.key.rpartition("/")
        if name != "data":
            return False
        return any(info.key.endswith(".metadata.json") for info in self.store.list(f"{folder}/metadata/".lstrip("/")))

    def files(self) -> Iterator[tuple[ObjectInfo, tuple[str, ...]]]:
        """The files below this folder, and the parts of their names from here: one LIST."""
        prefix = f"{self.key}/" if self.key else ""
        for info in self.store.list(prefix):
            parts = tuple(info.key[len(prefix) :].split("/"))
            if parts[-1]:
                yield info, parts


def parse_place(store: ObjectStore, url: str, *, is_quoted: bool = True) -> FilePlace:
    """The place that a URL, an absolute path, or a key in the database names.

    Args:
        store: the database's.
        is_quoted: whether ``file://`` URLs are percent-encoded. They are not in Iceberg's metadata.

    Raises:
        InputError: it is none of these, or in a store of another kind than the database's.
    """
    text = arguments.text("source", url)
    if re.match(r"file:/(?!/)", text):  # as Hadoop writes it
        text = f"file://{text.removeprefix('file:')}"
    own = unquote(store.url) if scheme_of(store.url) is FILE else store.url
    scheme, separator, rest = text.partition("://")
    if not separator:
        if not text.startswith("/"):
            return FilePlace(store, OWN, "", _key(text, url))
        scheme, rest = FILE.name, text
    elif scheme == FILE.name:
        path = rest[rest.find("/") :] if "/" in rest else rest
        rest = unquote(path) if is_quoted else path
    scheme = own_name(scheme)
    whole = f"{scheme}://{rest}"
    if whole.startswith(f"{own.rstrip('/')}/"):
        return FilePlace(store, OWN, "", _key(whole[len(own.rstrip("/")) + 1 :], url))
    check_same_kind(store, scheme, url)
    if scheme == FILE.name:
        return FilePlace(store.sibling(""), scheme, "", _key(rest.lstrip("/"), url))
    root, _, key = rest.partition("/")
    if not root or not SCHEMES[scheme].is_bucket(root):
        raise InputError(f"{url!r} names no {'bucket' if SCHEMES[scheme].has_buckets else 'store'}")
    return FilePlace(store.sibling(root), scheme, root, _key(key, url))


def _key(text: str, url: str) -> str:
    key = text.strip("/")
    if {".", ".."} & set(key.split("/")):
        raise InputError(f"{url!r}: parts of a path may not be '.' or '..'")
    return key
