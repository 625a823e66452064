"""Mutations of writes that find rows first: conditions of DuckDB, SQL, parts that are overwritten, equal rows."""

from __future__ import annotations

from mutations.mutation import Mutation, mutation

PARTIAL_WRITES: tuple[Mutation, ...] = (
    mutation(
        "rows that DuckDB found are deleted, whatever has changed",
        "a delete by a condition depends on the rows for which it may be TRUE",
        "transactions/row_statements.py",
        "        if isinstance(condition, SqlCondition):\n            unit.depend_on_rows(",
        "        if isinstance(condition, str):\n            unit.depend_on_rows(",
    ),
    mutation(
        "a condition of DuckDB is TRUE wherever its predicates are",
        "DuckDB evaluates a condition on the rows for which the predicates in it are TRUE",
        "rows/scan/conditions.py",
        "            found = to_mask(self._evaluator.is_true(self._text, {_ROWS: rows}))\n",
        "            found = np.ones(rows.num_rows, np.bool_)\n",
    ),
    mutation(
        "the rows of a condition are counted without those that are hidden",
        "a position counts all rows of the file, hidden ones too",
        "rows/scan/conditions.py",
        "        mask[np.flatnonzero(keep)[found]] = True\n",
        "        mask[np.flatnonzero(found)] = True\n",
    ),
    mutation(
        "a part is overwritten by additional rows",
        "the rows of the part go in the commit that adds the new ones",
        "transactions/row_statements.py",
        "            return [self.replace_matching(predicate, files)]\n",
        "            return [replace(self._write_statement(()), files=files, is_overwrite=True)]\n",
    ),
    mutation(
        "rows whose keys are known are not written, equal or not",
        "only rows that equal the table's row of their key are left out",
        "transactions/merge/merge.py",
        "            is_equal[found[equal_rows(*(pair.columns for pair in pairs))]] = True\n",
        "            is_equal[found] = True\n",
    ),
    mutation(
        "rows that a statement of SQL changes stay, in addition to the new ones",
        "an updated row is hidden in the commit that writes its new version",
        "sql/row_calls.py",
        "            known.update(new)\n",
        "            known.update(new & known)\n",
    ),
)
