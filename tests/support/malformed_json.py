# ruff: noqa: E501
"""Malformed JSON lines."""

from __future__ import annotations

from support.malformed_case import MalformedFile, cell, text, whole

MALFORMED_JSON: list[MalformedFile] = [
    # a cell that does not fit its column
    text("not of the type", "string-as-integer.jsonl", b'{"id": 1}\n{"id": "two"}\n', "'two' is not a valid int64", 2, 2, "id"),
    text("not of the type", "bool-as-integer.jsonl", b'{"id": 1}\n\n{"id": true}\n', "'true' is not a valid int64", 3, 2, "id"),
    text("not of the type", "object-as-list.jsonl", b'{"id": 1, "tags": ["a"]}\n{"id": 2, "tags": {"a": 1}}\n', "array", 2, 2, "tags"),
    text("not of the type", "nested-word.jsonl", b'{"id": 1, "at": {"x": 1}}\n{"id": 2, "at": {"x": "one"}}\n', "number", 2, 2, "at"),
    # numbers that would be changed
    text("does not fit", "half-an-integer.jsonl", b'{"id": 1.0}\n{"id": 1.5}\n', "'1.5' is not a valid int64: it does not fit", 2, 2, "id"),
    text("does not fit", "too-many-digits.jsonl", b'{"id": 1, "paid": 12345.67}\n', "does not fit without loss", 1, 1, "paid"),
    # time zones
    text("time zone", "date-for-a-moment.jsonl", b'{"id": 1, "seen": "2024-01-01"}\n', "it has no UTC offset", 1, 1, "seen"),
    # NULL where there must be a value
    text("null", "null-id.jsonl", b'{"id": 1}\n{"id": null}\n', "not nullable", 2, 2, "id"),
    text("null", "no-id.jsonl", b'{"id": 1}\n{"name": "b"}\n', "not nullable", 2, 2, "id"),
    # encoding
    text("not UTF-8", "latin1.jsonl", '{"id": 1}\n{"id": 2, "name": "Köln"}\n'.encode("latin-1"), "not UTF-8", 2, 2),
    text("not UTF-8", "latin1-inferred.ndjson", '{"name": "Köln"}\n'.encode("latin-1"), "not UTF-8", 1, 1, schema=None),
    text("not UTF-8", "half-a-surrogate.jsonl", b'{"id": 1, "name": "\\ud83d"}\n', "surrogate", 1, 1),
    # JSON
    text("not JSON", "cut-off-in-a-line.jsonl", b'{"id": 1}\n{"id": 2, "na', "not JSON", 2, 2),
    text("not JSON", "comma-too-many.jsonl", b'{"id": 1,}\n', "not JSON", 1, 1),
    text("not JSON", "single-quotes.jsonl", b"{\"id\": 1}\n{'id': 2}\n", "not JSON", 2, 2, schema=None),
    text("not JSON", "leading-zero.jsonl", b'{"id": 007}\n', "not JSON", 1, 1),
    text("not JSON", "two-objects-in-a-line.jsonl", b'{"id": 1}\n{"id": 2}{"id": 3}\n', "not JSON", 2, 2),
    text("not JSON", "pretty-printed.json", b'{"id": 1}\n{\n  "id": 2\n}\n', "not JSON", 2, 2),
    text("not JSON", "raw-tab.jsonl", b'{"id": 1, "name": "a\tb"}\n', "not JSON", 1, 1, schema=None),
    text("NaN", "nan.jsonl", b'{"id": 1, "score": 1.5}\n{"id": 2, "score": NaN}\n', "NaN is not JSON", 2, 2),
    text("NaN", "infinity.jsonl", b'{"score": -Infinity}\n', "-Infinity is not JSON", 1, 1, schema=None),
    text("not an object", "array.json", b'[{"id": 1}, {"id": 2}]\n', "not a JSON object", 1, 1),
    text("not an object", "number.jsonl", b'{"id": 1}\n2\n', "not a JSON object", 2, 2, schema=None),
    text("key twice", "key-twice.jsonl", b'{"id": 1}\n{"id": 2, "name": "a", "id": 3}\n', "key 'id' is there twice", 2, 2),
    text("key twice", "key-twice-inside.jsonl", b'{"at": {"x": 1, "x": 2}}\n', "key 'x' is there twice", 1, 1, schema=None),
    text("unknown column", "unknown-key.jsonl", b'{"id": 1}\n{"id": 2, "nmae": "a"}\n', "no column 'nmae'", 2, 2, "nmae"),
    text("unknown column", "unknown-key-inside.jsonl", b'{"id": 1, "at": {"x": 1, "z": 2}}\n', "unexpected field", 1, 1, "at"),
    text("nested too deeply", "deep.jsonl", b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n", "nested more than", 1, 1, schema=None),
    text("nested too deeply", "deep-objects.jsonl", b'{"id": 1}\n' + b'{"id":' * 50_000 + b"}" * 50_000, "nested more than", 2, 2),
    whole("nothing to infer from", "empty.jsonl", b"", "declare a schema", None),
    # base64
    text("not base64", "unpadded-base64.jsonl", b'{"id": 1, "raw": "aGVsbG8"}\n', "is not a valid binary", 1, 1, "raw"),
    # more of what is not JSON
    text("not JSON", "commas-between.jsonl", '{"id": 1},\n{"id": 2}\n', "not JSON", 1, 1),
    text("not JSON", "comment.jsonl", '{"id": 1} // one\n', "not JSON", 1, 1),
    text("not JSON", "true-of-python.jsonl", '{"id": 1, "ok": True}\n', "not JSON", 1, 1),
    text("not JSON", "undefined.jsonl", '{"id": 1, "name": undefined}\n', "not JSON", 1, 1),
    text("not JSON", "key-without-quotes.jsonl", "{id: 1}\n", "not JSON", 1, 1),
    text("not JSON", "hexadecimal-escape.jsonl", '{"id": 1, "name": "\\x41"}\n', "not JSON", 1, 1),
    text("not JSON", "short-escape.jsonl", '{"id": 1, "name": "\\u12"}\n', "not JSON", 1, 1),
    text("not JSON", "line-end-in-text.jsonl", '{"id": 1, "name": "a\nb"}\n', "not JSON", 1, 1),
    text("not JSON", "cut-off-in-text.jsonl", '{"id": 1}\n{"id": 2, "name": "ab', "not JSON", 2, 2),
    text("not JSON", "plus-sign.jsonl", '{"id": +1}\n', "not JSON", 1, 1),
    text("not JSON", "hexadecimal.jsonl", '{"id": 0x10}\n', "not JSON", 1, 1),
    text("not JSON", "point-at-the-end.jsonl", '{"id": 1.}\n', "not JSON", 1, 1),
    text("not JSON", "record-separator.jsonl", '\x1e{"id": 1}\n', "not JSON", 1, 1),
    text("not JSON", "error-page.jsonl", "<!DOCTYPE html>\n", "not JSON", 1, 1),
    text("not JSON", "delimited.jsonl", "id,name\n1,a\n", "not JSON", 1, 1),
    text("not JSON", "bracket-alone.json", '[\n{"id": 1}\n]\n', "not JSON", 1, 1),
    text("byte order mark", "mark-in-the-middle.jsonl", '{"id": 1}\n\ufeff{"id": 2}\n', "not JSON", 2, 2),
    text("NUL", "zeros.jsonl", bytes(100), "not JSON", 1, 1),
    text("NUL", "nul-on-a-line.jsonl", b'{"id": 1}\n\0\n', "not JSON", 2, 2),
    text("NUL", "control-character-in-text.jsonl", '{"id": 1, "name": "a\x01"}\n', "not JSON", 1, 1),
    whole("UTF-16", "utf-16.jsonl", '{"id": 1}\n'.encode("utf-16"), "UTF-16"),
    text("UTF-16", "utf-16-without-mark.jsonl", '{"id": 1}\n'.encode("utf-16-le"), "not JSON", 1, 1),
    # more of what is no object
    text("not an object", "null.jsonl", '{"id": 1}\nnull\n', "not a JSON object", 2, 2),
    text("not an object", "text.jsonl", '"id"\n', "not a JSON object", 1, 1),
    text("not an object", "rows-as-lists.jsonl", '["id", "name"]\n[1, "a"]\n', "not a JSON object", 1, 1),
    text("null", "empty-object.jsonl", '{"id": 1}\n{}\n', "not nullable", 2, 2, "id"),
    whole("nothing to infer from", "blank.jsonl", "\n \n", "declare a schema", None),
    whole("nothing to infer from", "mark-alone.jsonl", "\ufeff", "declare a schema", None),
    whole("nothing to infer from", "empty-objects.jsonl", "{}\n{}\n", "declare a schema", None),
    # more of keys
    text("unknown column", "empty-key.jsonl", '{"id": 1, "": 2}\n', "no column ''", 1, 1, ""),
    text("column of another case", "capital.jsonl", '{"Id": 1}\n', "no column 'Id'", 1, 1, "Id"),
    text("key twice", "key-twice-by-an-escape.jsonl", '{"id": 1, "name": "a", "n\\u0061me": "b"}\n', "key 'name' is there twice", 1, 1),
    text("nested too deeply", "deep-in-a-list.jsonl", '{"id": 1, "tags": ' + "[" * 300 + "]" * 300 + "}\n", "nested more than", 1, 1),
    # values
    cell("wrong nesting", "object-as-integer.jsonl", "id", "{}", "is not a valid int64"),
    cell("wrong nesting", "list-as-integer.jsonl", "id", "[1]", "is not a valid int64"),
    cell("wrong nesting", "word-as-list.jsonl", "tags", '"a"'),
    cell("wrong nesting", "object-in-a-list.jsonl", "tags", '["a", {"b": 1}]'),
    cell("wrong nesting", "list-as-struct.jsonl", "at", "[1, 2]"),
    cell("wrong nesting", "word-as-struct.jsonl", "at", '"1,2"'),
    cell("does not fit", "beyond-int32-inside.jsonl", "at", '{"x": 2147483648}'),
    cell("does not fit", "fraction-inside.jsonl", "at", '{"x": 1.5}'),
    cell("does not fit", "beyond-int64.jsonl", "id", "9223372036854775808", "does not fit without loss"),
    cell("does not fit", "exponent-for-int8.jsonl", "small", "1e3", "does not fit without loss"),
    cell("does not fit", "third-place.jsonl", "paid", "0.001", "does not fit without loss"),
    cell("not of the type", "decimal-comma.jsonl", "paid", '"12,50"', "is not a valid decimal"),
    cell("not of the type", "infinity-in-text.jsonl", "id", '"Infinity"', "is not a valid int64"),
    cell("not of the type", "maybe.jsonl", "ok", '"maybe"', "is not a valid bool"),
    cell("not of the type", "two-for-true.jsonl", "ok", "2", "is not a valid bool"),
    cell("no such date", "thirty-first-of-april.jsonl", "born", '"2024-04-31"', "is not a valid date32"),
    cell("no such date", "date-as-a-number.jsonl", "born", "20240101", "is not a valid date32"),
    cell("no such date", "nan-in-text.jsonl", "born", '"NaN"', "is not a valid date32"),
    cell("no such time", "leap-second.jsonl", "seen", '"2016-12-31T23:59:60Z"', "is not a valid timestamp"),
    cell("time zone", "epoch-undeclared.jsonl", "seen", "1700000000", "is not a valid timestamp"),
]  # fmt: skip
