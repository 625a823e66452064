"""Mutations of changes of columns."""

# ruff: noqa: E501  # quotes lines of the full length

from __future__ import annotations

from mutations.mutation import Edit, Mutation, mutation

COLUMNS: tuple[Mutation, ...] = (
    mutation(
        "rows that are older than a column have NULL in it",
        "rows that are older than a column have its initial default",
        "format/evolution.py",
        "            field, comment=self.comment, added_ts=ts, initial_default=initial, **_default_members(self.default)\n",
        "            field, comment=self.comment, added_ts=ts, initial_default=None, **_default_members(self.default)\n",
    ),
    mutation(
        "a delete by a column that was dropped in the meantime is committed",
        "a tombstone lands on a version that has its columns",
        "commit/statements/row_changes.py",
        "    if missing := ids - {",
        "    if missing := ids - ids - {",
    ),
    mutation(
        "the output of a compaction keeps bounds of days in a column of timestamps",
        "bounds have the column's current type",
        "commit/statements/background.py",
        "        written = widen_files(tuple(outputs), self.schema, entry.schema)\n",
        "        written = widen_files(tuple(outputs), None, entry.schema)\n",
    ),
    mutation(
        "appended rows of days keep bounds of days in a column of timestamps",
        "bounds have the column's current type",
        "commit/statements/row_changes.py",
        "    files = widen_files(files, schema, now)\n",
        "    files = widen_files(files, None, now)\n",
    ),
    mutation(
        "rows with a field that was dropped in the meantime are committed",
        "files have no fields but those of their column",
        "format/column_history.py",
        "        field.id in fields_now and _is_same_field(field, fields_now[field.id], base_ts) for field in child_fields(json)\n",
        "        _is_same_field(field, fields_now[field.id], base_ts) for field in child_fields(json) if field.id in fields_now\n",
    ),
    mutation(
        "fields of a struct are matched by position",
        "fields inside a column are matched by id",
        "format/column_history.py",
        "        index = indexes.get(field_id(field))\n",
        "        index = target.get_field_index(field.name) if target.num_fields == own.num_fields else None\n",
    ),
    mutation(
        "a field is 0 where its struct is NULL",
        "a field is NULL where its struct is",
        "format/column_history.py",
        "        array = pc.struct_field(array, [index])\n",
        "        array = pc.if_else(array.is_valid(), pc.struct_field(array, [index]), 0)\n",
    ),
    mutation(
        "a property is set although its column has changed",
        "a property that names a column is set only if the column is the one it was checked against",
        "commit/statements/background.py",
        "        if self.seen is not None and (self.seen.schema, self.seen.properties)",
        "        if self.seen is None and (entry.schema, entry.properties)",
    ),
    mutation(
        "rows of a wider type land in a table that was restored to the narrower one",
        "files have no wider type than their column",
        "format/evolution.py",
        "    if column is None or not is_successor(field.type, column.type, base_ts):\n",
        "    if column is None:\n",
    ),
    Mutation(
        "rows that a writer buffers are matched by column names",
        "buffered rows belong to the columns they were accepted for, whatever their names are now",
        (
            Edit(
                "api/writer.py",
                "            check_written_under(schema, entry, base_ts)  # before anything is uploaded\n",
                "",
            ),
            Edit("api/writer.py", "self._table, entry=own)", "self._table, entry=entry)"),
            Edit(
                "api/writer.py",
                "                files = TableChange",
                "                batches = list(rows_of(entry.schema, pa.Table.from_batches(batches)))\n                files = TableChange",
            ),
            Edit("api/writer.py", "requests=requests, schema=schema))", "requests=requests, schema=entry.schema))"),
        ),
    ),
)
