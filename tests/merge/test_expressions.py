"""Expressions: DuckDB evaluates them row by row, in the types that columns have, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys

import pyarrow as pa
import pytest

from dolmen.errors import InputError
from dolmen.rows.scan.engines.expressions import Evaluator

TARGET = pa.record_batch(
    {
        "n": pa.array([1, None, 3], pa.int32()),
        "u": pa.array([2**64 - 2, 0, 2**64 - 1], pa.uint64()),
        "Odd name": ["a", "b", None],
    }
)
SOURCE = pa.record_batch({"n": pa.array([10, 20, 30], pa.int64()), "x": [0.5, float("nan"), -0.0]})
SIDES = {"target": TARGET, "source": SOURCE}


def evaluate(*texts: str) -> list[pa.Array]:
    evaluator = Evaluator()
    try:
        schemas = {side: rows.schema for side, rows in SIDES.items()}
        types = evaluator.types(texts, schemas)
        found = evaluator.evaluate(texts, SIDES)
        assert [array.type for array in found] == types
        return found
    finally:
        evaluator.close()


def test_sides_are_joined_row_by_row() -> None:
    sums, texts, ones, missing = evaluate(
        "target.n + source.n", "upper(\"odd name\") || '!'", "1 -- of each row", "NULL"
    )
    assert (sums.to_pylist(), texts.to_pylist()) == ([11, None, 33], ["A!", "B!", None])
    assert (ones.to_pylist(), missing.type) == ([1, 1, 1], pa.null())


def test_values_keep_their_bits() -> None:
    [x, u] = evaluate("source.x", "u")
    assert [str(value) for value in x.to_pylist()] == ["0.5", "nan", "-0.0"]
    assert u.equals(TARGET["u"])


def test_what_duckdb_would_rewrite_is_evaluated_as_it_stands() -> None:
    [found] = evaluate("CASE WHEN u < 18446744073709551615 THEN u + 1 = 18446744073709551615 END")
    assert found.to_pylist() == [True, False, None]
    with pytest.raises(InputError, match="Overflow"):
        evaluate("u + 1 = 18446744073709551615")  # the last row's has no successor


@pytest.mark.parametrize("text", ["{}", "[{}]", "{{'a': [{}]}}", "MAP {{'a': {}}}", "array_value({})"])
def test_a_time_of_day_with_a_zone_is_refused_as_its_zone_would_be_lost(text: str) -> None:
    with pytest.raises(InputError, match="TIME"):
        evaluate(text.format("'10:00:00+02'::TIMETZ"))
    evaluate(text.format("'10:00:00+02'::TIMETZ::TIME"), "'10:00:00+02'::TIMETZ > '09:00:00+02'::TIMETZ", "now()")


def test_many_batches_are_evaluated_one_after_the_other() -> None:
    evaluator = Evaluator()
    rows = pa.record_batch({"n": pa.array(range(200_000), pa.int64())})
    for start in range(0, 200_000, 70_000):
        part = rows.slice(start, 70_000)
        [found] = evaluator.evaluate(["n * 2"], {"target": part})
        assert found.to_pylist()[:3] == [2 * start, 2 * start + 2, 2 * start + 4]
        assert len(found) == part.num_rows
    evaluator.close()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("  \n", "empty"),
        ("n", "Ambiguous"),
        ("nope", "not found"),
        ("target.nope", "nope"),
        ("sum(u)", "aggregates"),
        ("rank() OVER (ORDER BY u)", "window"),
        ("unnest([1, 2])", "UNNEST"),
        ("(SELECT 1)", "subquery"),
        ("EXISTS (SELECT 1)", "subquery"),
        ("u IN (SELECT 1)", "subquery"),
        ("*", "all columns"),
        ("COLUMNS('u')", "all columns"),
        ("$a", "parameter"),
        ("u AS other", "AS"),
        ("1) FROM target --", "syntax error"),
        ("1) WHERE (FALSE", "expression"),
        ("1); SELECT (2", "expression"),
        ("union_value(k := u)", "type"),
        ("read_blob('/etc/passwd')", "called"),
        ("/* open", "unterminated"),
        ("'", "unterminated"),
        ("error('of a row')", "of a row"),
    ],
)
def test_what_no_row_can_answer_is_refused(text: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        evaluate(text)
    assert words in str(caught.value)


def test_after_an_error_others_are_evaluated() -> None:
    evaluator = Evaluator()
    with pytest.raises(InputError, match=r"'\(1 / n\)::INTEGER::VARCHAR::DATE'"):
        evaluator.evaluate(["u", "(1 / n)::INTEGER::VARCHAR::DATE"], {"target": TARGET})
    assert evaluator.evaluate(["n"], {"target": TARGET})[0].to_pylist() == [1, None, 3]
    evaluator.close()


def test_names_that_sql_cannot_tell_apart_are_refused() -> None:
    rows = pa.record_batch({"a": [1], "A": [2], "b": [3]})
    evaluator = Evaluator()
    assert evaluator.evaluate(["b"], {"target": rows})[0].to_pylist() == [3]
    with pytest.raises(InputError, match="SQL"):
        evaluator.evaluate(["a + 1"], {"target": rows})
    evaluator.close()


def test_evaluators_at_once_see_their_own_rows_and_errors() -> None:
    first, second = Evaluator(), Evaluator()
    [before] = first.evaluate(["now()"], {"target": TARGET})
    for evaluator, step in ((first, 1), (second, 2), (first, 3)):
        rows = pa.record_batch({"n": [step]})
        assert evaluator.evaluate(["n * 10"], {"target": rows})[0].to_pylist() == [step * 10]
    with pytest.raises(InputError, match="of a row"):
        second.evaluate(["error('of a row')"], {"target": TARGET})
    assert first.evaluate(["now()"], {"target": TARGET})[0].equals(before)
    first.close()
    assert second.evaluate(["n"], {"target": TARGET})[0].to_pylist() == [1, None, 3]
    second.close()


def test_a_process_that_was_forked_evaluates_too() -> None:
    Evaluator().close()
    child = os.fork()
    if child == 0:
        found = Evaluator().evaluate(["n"], {"target": TARGET})[0].to_pylist()
        os._exit(0 if found == [1, None, 3] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_process_that_has_evaluated_ends_without_a_word() -> None:
    """Even if Python's collector is off, so that it finds nothing at the end either."""
    source = "import gc; gc.disable(); from dolmen.rows.scan.engines.expressions import Evaluator; Evaluator().close()"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
