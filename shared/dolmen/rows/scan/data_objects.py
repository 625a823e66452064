"""Where the bytes of a data file are: under its path in the database's store or, if it was adopted, where it was.

The store that an adopted file is in is of the same kind as the database's: a manifest cannot make a reader of a bucket
open files of the reader's machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from dolmen.errors import CorruptionError, Error, InputError
from dolmen.format.adopted import OWN, AdoptedPath, is_adopted
from dolmen.format.entries import DataFile
from dolmen.store.base import ObjectStore
from dolmen.store.schemes import scheme_of


@dataclass(frozen=True, slots=True)
class DataObject:
    """The object that a data file is.

    Args:
        store: the store that it is in.
        key: its key there.
        adopted: what its path says; None for the database's own files.
    """

    store: ObjectStore
    key: str
    adopted: AdoptedPath | None = None

    @property
    def label(self) -> str:
        """Its name in messages."""
        return self.adopted.label if self.adopted else self.key


def data_object(store: ObjectStore, path: str) -> DataObject:
    """Finds the object of a data file.

    Args:
        store: the database's.
        path: the file's path in its entry.

    Raises:
        CorruptionError: the path is that of an adopted file in a store of another kind than the database's.
    """
    if not is_adopted(path):
        return DataObject(store, path)
    adopted = AdoptedPath.parse(path)
    if adopted is None:
        raise CorruptionError(path, "it is no path of an adopted file")
    if adopted.scheme == OWN:
        return DataObject(store, adopted.key, adopted)
    kind = scheme_of(store.url)
    if kind is None or kind.name != adopted.scheme:
        raise CorruptionError(adopted.label, f"a database at {store.url} cannot have adopted it")
    return DataObject(store.sibling(adopted.root), adopted.key, adopted)


def local_path(store: ObjectStore, path: str) -> str | None:
    """A data file's path on this machine if nobody replaces it there. Others may replace an adopted one.

    Args:
        store: the database's.
        path: the file's path in its entry.
    """
    return None if is_adopted(path) else store.local_path(path)


def is_local(store: ObjectStore) -> bool:
    """Whether the objects of a store are files of this machine."""
    return store.local_path("any") is not None


def missing_file_error(store: ObjectStore, file: DataFile, table: str) -> CorruptionError:
    """The error for a data file that is not there."""
    found = data_object(store, file.path)
    if found.adopted:
        return CorruptionError(
            found.label, f"it is missing, and table {table!r} has adopted it: put it back, or delete its rows"
        )
    return CorruptionError(file.path, f"it is missing, and is a data file of table {table!r}")


def changed_file_error(store: ObjectStore, file: DataFile, table: str, reason: str) -> Error:
    """The error for a data file that is another one than its entry says.

    Args:
        reason: how one can tell, as the error for a file of the database's own says it.
    """
    found = data_object(store, file.path)
    if found.adopted:
        return CorruptionError(
            found.label,
            f"it was changed since table {table!r} adopted it ({reason}): put the file of then back, or drop the table "
            "and adopt the files anew",
        )
    return CorruptionError(file.path, reason)


def check_same_kind(store: ObjectStore, scheme: str, url: str) -> None:
    """Raises InputError unless a database in this store can adopt files of this scheme."""
    kind = scheme_of(store.url)
    if kind is None or kind.name != scheme:
        raise InputError(f"{url!r}: a database at {store.url} can adopt files in stores of its own kind only")
