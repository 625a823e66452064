"""Look-ups by primary key: methods of tables of the newest version, of an old one, and inside a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from dolmen.base import arguments
from dolmen.format.schema import COMMIT_TS
from dolmen.rows.scan.frames import to_dicts
from dolmen.rows.scan.lookup import Lookup, where_key_in
from dolmen.transactions.reading import ReadableTable
from dolmen.transactions.row_statements import take_keys


class KeyedTable(ReadableTable):
    """A table whose rows are found by their primary key."""

    def get(self, key: Any, columns: Sequence[str] | None = None) -> dict[str, Any] | None:
        """The row with a key, by column; None if there is none.

        If several rows have the key, which ``append`` does not prevent, it is one of those that were committed last.

        Args:
            key: the value of the primary key, or a tuple of the values of its columns.
            columns: names of columns; all by default.

        Raises:
            InputError: the table has no primary key, or the value does not fit it; or Python does not have a date or
                time of the row, which ``get_many`` returns.
        """
        found = self._lookup([key], columns, with_commit_ts=True).to_arrow()
        if not found.num_rows:
            return None
        last = found.sort_by([(COMMIT_TS, "descending")]).slice(0, 1).drop_columns([COMMIT_TS])
        [row] = to_dicts(last)
        return row

    def get_many(self, keys: Any, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows with some keys, in any order. Keys without a row are left out, and repeated keys count once.

        Args:
            keys: values of the primary key, as a list, a Series, or an Arrow or NumPy array; tuples, if it has several
                columns; or Arrow data with columns of their names.
            columns: names of columns; all by default.

        Raises:
            InputError: the table has no primary key, or a value does not fit it.
        """
        return self._lookup(keys, columns, with_commit_ts=False).to_arrow()

    def _lookup(self, keys: Any, columns: Sequence[str] | None, *, with_commit_ts: bool) -> Lookup:
        view = self._view()
        entry = view.entry()
        taken = take_keys(entry, keys)
        if taken.num_rows:
            self._note_read(where_key_in(entry, taken))
        names = None if columns is None else arguments.names("columns", columns)
        return Lookup(view, taken, names, with_commit_ts=with_commit_ts)
