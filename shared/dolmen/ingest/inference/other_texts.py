"""Text that is not a delimited table, though it may contain delimiters: what it looks like, and what helps."""

from __future__ import annotations

import json
import re

from dolmen.errors import InputError

_MOST_LINES = 200
_MOST_LETTERS = 1000
_RULE = re.compile(r"\s*[|+]?[\s:|+=-]*-{3}[\s:|+=-]*$")
_MARKDOWN_RULE = re.compile(r"\s*\|?\s*:?-{3,}:?\s*(\|\s*:?-{3,}:?\s*)*\|?\s*$")
_FRAME = re.compile(r"\s*[+|][-=+]{4,}[+|]\s*$|\s*[┌╔├╠┏╭]")
_ACCESS_LOG = re.compile(r'\S+ \S+ .{1,100}? ?\[[^\]]{10,40}\] "')
_SYSLOG = re.compile(r"(<\d{1,3}>\d? ?)?[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ .*: ")
_LEVEL_LOG = re.compile(
    r"\W?(\d{4}-\d\d-\d\d[T ])?\d\d:\d\d:\d\d\S*\W.{0,80}?\b(INFO|WARN|WARNING|ERROR|DEBUG|TRACE|FATAL)\b"
)
_QUOTED = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'[^']*'")
_PAIR = re.compile(r"[\w.@/-]+=\S*$")
_SETTING = re.compile(r"\s*[A-Za-z_][\w. -]*=(?!=).*$")
_MEMBER = re.compile(r"\s*-?\s*[\"']?([A-Za-z_][\w. -]*)[\"']?:(\s+.*)?$")
_SECTION = re.compile(r"\s*\[[^\],;\t|]+\]\s*$")
_SQL = re.compile(
    r"\s*(INSERT\s+INTO|CREATE\s+(OR\s+REPLACE\s+)?(TABLE|DATABASE|VIEW)|DROP\s+TABLE|COPY\s+\S+.*FROM\s+stdin)\b", re.I
)
_BEGINNINGS = (
    (re.compile(r"\s*<(!doctype\s+html|html|head|body|table)\b", re.I), "HTML: export the table as CSV"),
    (re.compile(r"\s*<(\?xml|[A-Za-z_][\w.:-]*(\s[^>]*)?/?>)"), "XML: convert it to JSON lines or CSV"),
    (re.compile(r"\s*BEGIN:V(CARD|CALENDAR)"), "a vCard or a calendar"),
    (re.compile(r"-----BEGIN [A-Z ]+-----"), "a key or a certificate"),
    (re.compile(r"#!\s*/"), "a script"),
    (re.compile(r"%YAML|---\s*(\r?\n)\s*(- )?[\w\"']+:(\s)"), "YAML: convert it to JSON lines"),
    (re.compile(r"\\(documentclass|begin)\{"), "LaTeX"),
    (re.compile(r"\s*diff --git |--- \S+.*\r?\n\+\+\+ "), "a patch"),
    (re.compile(r"version https://git-lfs"), "a pointer of Git LFS, not the file itself: git lfs pull"),
)


def refuse_other_texts(text: str) -> None:
    """Raises InputError if the start of a file is plainly not a delimited table; the caller adds the file's name."""
    for pattern, what in _BEGINNINGS:
        if pattern.match(text):
            raise InputError(f"it looks like {what}")
    lines = [line[:_MOST_LETTERS] for line in text.splitlines()[: _MOST_LINES * 2] if line.strip()][:_MOST_LINES]
    if not lines:
        return
    if _is_json(text, lines):
        raise InputError("it looks like JSON: give its format (--format jsonl, or the setting ingest_format)")
    for line, number in zip(lines[:20], range(1, 21), strict=False):
        if _FRAME.match(line) and len(lines) > 2:
            raise InputError("it looks like a table that a terminal shows: export it as CSV")
        before = lines[number - 2] if number > 1 else ""
        if "|" in line and _MARKDOWN_RULE.match(line) and "|" in before:
            raise InputError("it looks like a Markdown table: export it as CSV, or remove the line of '-'")
        if "+" in line and _RULE.match(line) and "|" in before:
            raise InputError("it looks like a table that psql shows: export it with \\copy ... csv header")
    for pattern, share, least, what in (
        (
            _ACCESS_LOG,
            0.8,
            1,
            "the access log of a web server, whose fields have several delimiters: parse it to JSON lines",
        ),
        (_SYSLOG, 0.8, 1, "a system log: parse it to JSON lines"),
        (_SQL, 0.02, 1, "SQL statements: load them into a database, and export the table"),
    ):
        found = sum(pattern.match(line) is not None for line in lines)
        if found >= least and found >= share * len(lines):
            raise InputError(f"it looks like {what}")
    if sum(map(_is_pairs, lines)) >= 0.8 * len(lines):
        raise InputError("it looks like key=value text (logfmt): convert it to JSON lines")
    sections = sum(_SECTION.match(line) is not None for line in lines)
    if _share(_SETTING, [line for line in lines if line.lstrip()[0] not in "#;["]) > (0.5 if sections else 0.9):
        raise InputError("it looks like settings (key=value): convert them to JSON lines or CSV")
    members = [match[1] for line in lines if (match := _MEMBER.match(line))]
    if len(members) >= max(2, 0.9 * len(lines)):
        raise InputError("it looks like key: value text or YAML: convert it to JSON lines or CSV")


def refuse_logs(text: str) -> None:
    """Raises InputError for the logs of programs; only for text in which no delimiter was found."""
    lines = [line for line in text.splitlines()[: _MOST_LINES * 2] if line.strip()][:_MOST_LINES]
    if len(lines) > 1 and _share(_LEVEL_LOG, lines) > 0.7:
        raise InputError("it looks like the log of a program: parse it to JSON lines")


def refuse_aligned(text: str) -> None:
    """Raises InputError for columns that spaces align; only for text in which no delimiter was found."""
    lines = [line.rstrip() for line in text.splitlines()[: _MOST_LINES * 2] if line.strip()][:_MOST_LINES]
    if len(lines) < 3 or "\t" in text:
        return
    widest = max(map(len, lines))
    if widest > 10_000:
        return
    inner = sum("  " in line.strip() for line in lines) / len(lines)
    tokens = [len(line.split()) for line in lines]
    common = max(set(tokens), key=tokens.count)
    is_regular = common > 1 and tokens.count(common) >= 0.9 * len(lines)
    used = [False] * widest
    for line in lines:
        for at, sign in enumerate(line):
            if sign != " ":
                used[at] = True
    gutters = sum(used[at] and not used[at - 1] for at in range(1, widest)) - (not used[0])
    if inner >= 0.5 and (gutters > 0 or is_regular):
        raise InputError(
            "it looks like fixed-width text: spaces align its columns. Convert it: tr -s ' ' '\\t' if no value has a "
            "space, or pandas.read_fwf"
        )


def _is_pairs(line: str) -> bool:
    words = _QUOTED.sub("x", line).split()
    pairs = sum(_PAIR.match(word) is not None for word in words)
    return pairs > 1 and pairs >= 0.8 * len(words)


def _share(pattern: re.Pattern[str], lines: list[str]) -> float:
    return sum(pattern.match(line) is not None for line in lines) / len(lines) if lines else 0.0


def _is_json(text: str, lines: list[str]) -> bool:
    start = text.lstrip()[:200]
    if not start or start[0] not in "{[":
        return False
    if re.match(r"[{\[]\s*(\r?\n|\s)*([{\[\"]|$)", start) and re.match(
        r"\{\s*\"[^\"\n]*\"\s*:|\[\s*[{\[]|[{\[]\s*$", start
    ):
        return True
    try:
        return all(isinstance(json.loads(line), dict | list) for line in lines[:5])
    except (ValueError, RecursionError):
        return False
