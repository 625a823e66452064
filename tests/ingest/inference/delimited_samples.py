"""Beginnings of files, each with the dialect in which people read it, or with the words of its refusal."""

# ruff: noqa: E501

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Sample:
    """A text; the dialect's attributes that differ from those of plain CSV; words that a note, or the refusal, has."""

    name: str
    text: str
    dialect: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    refused: str = ""


SAMPLES: list[Sample] = []


def _add(name: str, text: str, note: str = "", **dialect: Any) -> None:
    SAMPLES.append(Sample(name, text, dialect, note))


def _refuse(name: str, text: str, words: str) -> None:
    SAMPLES.append(Sample(name, text, refused=words))


def written(rows: Iterable[Sequence[Any]], **options: Any) -> str:
    """Rows as Python's csv writes them."""
    target = io.StringIO()
    csv.writer(target, lineterminator=options.pop("lineterminator", "\n"), **options).writerows(rows)
    return target.getvalue()


PEOPLE = [
    ["id", "name", "city", "born", "score"],
    [1, "Ada Lovelace", "London", "1815-12-10", 9.5],
    [2, "Grace Hopper", "New York", "1906-12-09", 8.25],
    [3, "Alan Turing", "London", "1912-06-23", 7.0],
    [4, "Edsger Dijkstra", "Rotterdam", "1930-05-11", 9.0],
]
QUOTED = [
    ["id", "title", "text"],
    [1, "Crime, and punishment", 'He said "no".'],
    [2, "War; and peace", "two\nlines"],
    [3, "Plain", "a | b"],
    [4, "Tab\there", ""],
]
WORDS = [["fruit", "color"], ["apple", "red"], ["banana", "yellow"], ["cherry", "dark red"]]

# Delimiters, with values that need quotes and without.
for delimiter in ",;\t|:^~\x01\x1f ":
    named = {"\t": "tab", "\x01": "ctrl-a", "\x1f": "unit separator", " ": "space"}.get(delimiter, delimiter)
    _add(f"people by {named}", written(PEOPLE, delimiter=delimiter), delimiter=delimiter)
for delimiter in ",;\t|^~\x01":
    named = {"\t": "tab", "\x01": "ctrl-a"}.get(delimiter, delimiter)
    _add(f"quoted by {named}", written(QUOTED, delimiter=delimiter), delimiter=delimiter)
    _add(f"all quoted by {named}", written(QUOTED, delimiter=delimiter, quoting=csv.QUOTE_ALL), delimiter=delimiter)
for delimiter in ",;\t|":
    named = {"\t": "tab"}.get(delimiter, delimiter)
    _add(
        f"single quotes by {named}",
        written(QUOTED, delimiter=delimiter, quotechar="'"),
        delimiter=delimiter,
        quote="'",
    )
    _add(
        f"escapes by {named}",
        written(QUOTED, delimiter=delimiter, doublequote=False, escapechar="\\", quoting=csv.QUOTE_NONNUMERIC),
        note="literal",
        delimiter=delimiter,
        escape="\\",
    )
    _add(f"without a header by {named}", written(PEOPLE[1:], delimiter=delimiter), delimiter=delimiter, header=False)
    _add(f"carriage returns by {named}", written(PEOPLE, delimiter=delimiter, lineterminator="\r"), delimiter=delimiter)
_add("windows line ends", written(PEOPLE, lineterminator="\r\n"))
_add("mixed line ends", "a,b\r\n1,2\n3,4\r\n5,6\n")
_add("no line end at the end", "a,b\n1,2\n3,4")
_add("byte order mark", "\ufeffa,b\n1,2\n3,4\n")

# Delimiters inside values.
_add("decimal commas", "name;price;weight\nA;1,50;2,25\nB;12,00;3,10\nC;7,99;0,50\n", delimiter=";")
_add("decimal commas without a header", "1,50;2,25\n12,00;3,10\n7,99;0,50\n", delimiter=";", header=False)
_add("thousands by point", "ort;einwohner\nBerlin;3.755.251\nUlm;126.949\nBonn;331.885\n", delimiter=";")
_add("thousands quoted", 'city,people\nBerlin,"3,755,251"\nUlm,"126,949"\n')
_add("timestamps", "at,value\n2025-01-01 10:00:00,1\n2025-01-01 11:00:00,2\n2025-01-01 12:30:00,5\n")
_add("times", "10:00,1\n11:00,2\n12:30,5\n", header=False)
_add("names with commas by tab", "name\tcity\nDoe, Jane\tParis\nRoe, Rick\tRome\nPoe, Paul\tOslo\n", delimiter="\t")
_add("names with commas by semicolon", "name;city\nDoe, Jane;Paris\nRoe, Rick;Rome\nPoe, Paul;Oslo\n", delimiter=";")
_add("sentences by tab", "id\ttext\n1\tWell, yes.\n2\tNo; never, ever.\n3\tPerhaps\n", delimiter="\t")
_add("lists in fields", "id,tags\n1,a;b;c\n2,d\n3,e;f\n")
_add("even lists in fields", "id,tags\n1,a;b\n2,d;x\n3,e;f\n")
_add("pipes in fields", "id,tags,n\n1,a|b,5\n2,d|x,6\n3,e|f,7\n")
_add("json in tsv", 'id\tdoc\n1\t{"a": 1, "b": 2}\n2\t{"a": 3, "b": 4}\n', delimiter="\t")
_add("json in csv", 'id,doc\n1,"{""a"": 1, ""b"": 2}"\n2,"{""a"": 3, ""b"": 4}"\n')
_add("urls", "id,url\n1,http://a.example/x?y=1\n2,https://b.example/z\n")
_add("paths", "id,path\n1,C:\\temp\\new\n2,D:\\data\n")
_add("paths that end with a backslash", 'id,path\n1,"C:\\temp\\"\n2,"D:\\data\\"\n')
_add("null as backslash N", "id\tname\n1\t\\N\n2\tBob\n3\t\\N\n", delimiter="\t")
_add("mac addresses", "mac,ip\n00:1a:2b:3c:4d:5e,10.0.0.1\n00:1a:2b:3c:4d:5f,10.0.0.2\n")
_add(
    "passwd",
    "root:x:0:0:root:/root:/bin/bash\nbin:x:1:1:bin:/bin:/sbin/nologin\nsync:x:5:0:sync:/sbin:/bin/sync\n",
    delimiter=":",
    header=False,
)
_add("addresses all with commas", 'id,address\n1,"Paris, France"\n2,"Rome, Italy"\n3,"Oslo, Norway"\n')
_add("empty fields", "a,b,c\n1,,3\n,,\n4,5,\n")
_add("wide", written([[f"c{n}" for n in range(300)], *[[n * r for n in range(300)] for r in range(5)]]))
_add("coordinates", "lat lon\n52.5 13.4\n48.1 11.6\n50.9 6.9\n", delimiter=" ")
_add("matrix by spaces", "1 2 3\n4 5 6\n7 8 9\n", delimiter=" ", header=False)
_add("matrix", "1,2,3\n4,5,6\n7,8,9\n", header=False)
_add("letters and numbers", "x,y\n1,2\n3,4\n")
_add("dates with slashes", "date,amount\n01/02/2025,5\n13/02/2025,6\n")
_add("currency", "item,price\nA,$5.00\nB,$6.50\n")
_add("emails", "email;n\na@b.example;1\nc@d.example;2\n", delimiter=";")
_add("a space after each comma", "id, name, n\n1, Ann, 5\n2, Bob, 6\n")

# Quotes.
_add("literal quotes in tsv", 'id\ttext\n1\t"To be\n2\tor not" to be\n3\tplain\n', delimiter="\t", quote=None)
_add("inches in tsv", 'id\tsize\n1\t5"\n2\t7"\n3\t12"\n', delimiter="\t")
_add("text after quotes", 'id\ttext\n1\t"Yes" he said\n2\tplain\n3\t"No" too\n', delimiter="\t", quote=None)
_add("quotes that would swallow lines", 'id\ttext\n1\t"open\n2\tmiddle\n3\tclose"\n4\tx\n', delimiter="\t", quote=None)
_add("one literal quote in csv", 'a,b,c\n1,"x,2\n3,y,4\n5,z,6\n', quote=None)
_add("apostrophes", "id,city\n1,'s-Hertogenbosch\n2,Rock 'n' roll\n3,Plain\n")
_add("quoted line ends", 'id,text\n1,"a\nb"\n2,"c\r\nd"\n3,"e"\n')
_add("quoted line ends with delimiters", 'id,text\n1,"a, b\nc, d"\n2,"e, f\ng, h"\n3,"i"\n')
_add("only text quoted", '"id","name"\n1,"Ann"\n2,"Bob"\n')
_add("quoted numbers", '"1","2"\n"3","4"\n', header=False)
_add("single quotes around text only", "id,name\n1,'Ann'\n2,'Bob, Jr.'\n3,'Cy'\n", quote="'")
_add("escaped delimiter", "id,name\n1,Ann\\, B.\n2,Bob\\, C.\n3,Cy\\, D.\n", escape="\\", note="literal")
_add("escaped quote in some", 'id,name,n\n1,"a \\"b\\" c",5\n2,"plain",6\n3,"x \\"y, z\\"",7\n', escape="\\")
_add("doubled quotes", 'id,name\n1,"a ""b"" c"\n2,"""x"""\n')
_add("empty quoted", 'id,name\n1,""\n2,""\n3,"x"\n')

# Comments and preamble.
_add("comments on top", "# made by x\n# on 2025-01-01\nid,name\n1,a\n2,b\n", comment="#", note="'#'")
_add("comments with commas", "# made by x, on y\nid,name\n1,a\n2,b\n", comment="#", note="'#'")
_add("comments within", "id,name,n\n1,a,5\n# skipped\n2,b,6\n", comment="#", note="1 line")
_add("slashes as comments", "// made by x\nid,name\n1,a\n2,b\n", comment="//", note="'//'")
_add("percent as comments", "% made by x\nid,name\n1,a\n2,b\n", comment="%", note="'%'")
_add("dashes as comments", "-- made by x\nid,name\n1,a\n2,b\n", comment="--", note="'--'")
_add("comment at the end", "id,name,n\n1,a,5\n2,b,6\n# end\n", comment="#", note="'#'")
_add(
    "variants",
    "##fileformat=VCFv4.2\n##source=x\n#CHROM\tPOS\tID\n1\t100\trs1\n1\t200\trs2\n",
    delimiter="\t",
    comment="##",
    note="'##'",
)
_add("a header after a number sign", "#id,name,n\n1,a,5\n2,b,6\n3,c,7\n")
_add("hashtags", "tag,n\n#one,1\n#two,2\n#three,3\n")
_add("hashtags without a header", "#one,1\n#two,2\nthree,3\n", header=False)
_add("colors", "name,color\nred,#ff0000\nblue,#0000ff\n")
_add("title", "Sales report\nname,n,price\na,1,1.5\nb,2,2.5\n", skip_lines=1, note="first line is skipped")
_add(
    "title and blank line",
    "Sales report 2025\n\nname,n,price\na,1,1.5\nb,2,2.5\n",
    skip_lines=2,
    note="2 lines are skipped",
)
_add(
    "settings above",
    "Device: X1\nSerial: 123\nDate: 2025-01-01\ntime,temp,hum\n10:00,20.5,40\n11:00,21.5,41\n12:00,21.0,42\n",
    skip_lines=3,
    note="3 lines",
)
_add(
    "settings with commas above",
    "Device,X1\nSerial,123\n\ntime,temp,hum\n10:00,20.5,40\n11:00,21.5,41\n12:00,21.0,42\n13:00,21.0,42\n",
    skip_lines=3,
    note="3 lines",
)
_add("blank lines above", "\n\nid,name\n1,a\n2,b\n")
_add("blank lines within", "id,name\n1,a\n\n2,b\n\n")
_add("Excel's sep", "sep=;\nid;name\n1;a\n2;b\n", delimiter=";", skip_lines=1, note="sep=;")
_add("Excel's sep of an unlikely sign", "sep=|\nid|name\n1|a, b\n2|c, d\n", delimiter="|", skip_lines=1, note="sep=|")
_add("Excel's sep tab", "sep=\t\nid\tname\n1\ta\n2\tb\n", delimiter="\t", skip_lines=1, note="sep=")
_add(
    "row names of R",
    "a b c\nr1 1 2 3\nr2 4 5 6\nr3 7 8 9\n",
    delimiter=" ",
    skip_lines=1,
    header=False,
    note="one more name",
)
_add("a delimiter after each row", "a,b,c\n1,2,3,\n4,5,6,\n7,8,9,\n", skip_lines=1, header=False, note="one more name")
_add("a delimiter after each line", "a,b,c,\n1,2,3,\n4,5,6,\n7,8,9,\n", names="number", note="numbered")

# Headers.
_add("all text", written(WORDS), note="assumed")
_add("all text without names twice", "apple,apple\nbanana,pear\n", header=False, note="a row")
_add("header of years", "country,1960,1961,1962\nA,5.5,6.1,7.2\nB,3.3,4.4,5.1\n")
_add("header only", "id,name,city\n", note="assumed")
_add("one row of numbers", "1,2,3\n", header=False, note="a row")
_add("names twice", "id,value,value\n1,2,3\n4,5,6\n", names="number", note="repeated names")
_add("names twice in other case", "id,Value,value\n1,2,3\n4,5,6\n", names="number", note="repeated names")
_add("a column without a name", ",name,n\n0,a,5\n1,b,6\n", names="number", note="without a name")
_add("codes without a header", "AB-12,x\nCD-34,y\nEF-56,z\nGH-78,w\n", header=False)
_add("codes with a header", "code,grade\nAB-12,x\nCD-34,y\nEF-56,z\nGH-78,w\n")
_add("values repeated", "yes,red,up\nno,blue,down\nyes,blue,up\nno,red,down\n", header=False)
_add(
    "a null and a number above nulls", "true-ish;NULL;1050177643031\nno;NULL;NULL\n", delimiter=";", note="--no-header"
)
_add("a fraction above numbers", "1/2\n1.10\n1e5\n", note="--no-header")
_add("nulls in the first row", "1,,a\n2,5,b\n3,6,c\n", header=False)
_add("booleans", "name,ok\na,true\nb,false\n")
_add("units below the header", "time,temp\ns,K\n1,300.5\n2,301.5\n3,302.5\n4,303.5\n", note="second header")
_add("a single row of text", "a,b\n", note="assumed")
_add("dates without a header", "2025-01-01,5\n2025-01-02,6\n", header=False)
_add("long text without a header", "1,the first text\n2,another text\n3,a third one\n", header=False)

# Ragged records and footers.
_add("short records", "a,b,c\n1,2,3\n4,5\n6\n7,8,9\n", ragged="fill", note="lack")
_add("mostly short records", "a,b,c,d\n1,2\n3,4\n5,6\n7,8,9,10\n", ragged="fill", note="lack")
_add("long records", "a,b,c\n1,2,3\n4,5,6,7\n8,9,10\n11,12,13\n", note="another number")
_add("short and long records", "a,b,c\n1,2,3\n4,5\n4,5,6,7\n8,9,10\n11,12,13\n", note="another number")
_add("footer", "name,n,price\na,1,1.5\nb,2,2.5\nc,3,3.5\nTotal: 3\n", note="footer")
_add("footer after a blank line", "name,n,price\na,1,1.5\nb,2,2.5\nc,3,3.5\n\n(3 rows)\n", note="footer")
_add("total", "name,n,price\na,1,1.5\nb,2,2.5\nc,3,3.5\nTotal,6,7.5\n", note="total")
_add("line ends in unquoted fields", "id,text,n\n1,a b,5\n2,hello\nworld,6\n3,c d,7\n", note="another number")
_add("a broken record", 'id,text\n1,"a"\n2,"b"c\n3,"d"\n4,"e"\n5,"f, g"\n', note="cannot be parsed")

# One column.
_add("one column of words", "name\nalice\nbob\ncarol\n", note="one field")
_add("one column of numbers", "n\n1\n2\n3\n", note="one field")
_add("one column of numbers without a header", "1\n2\n3\n", header=False, note="one field")
_add(
    "one column of timestamps", "at\n2025-01-01 10:00:00\n2025-01-01 11:00:00\n2025-01-01 12:00:00\n", note="one field"
)
_add(
    "one column of sentences",
    "text\nWell, yes\nNo\nPerhaps, or not, who knows\nFine\n",
    delimiter="\t",
    note="one field",
)
_add("one column of urls", "url\nhttp://a.example/x\nhttp://b.example/y\n", note="one field")
_add("one column of quoted text", 'text\n"a, b"\n"c"\n"d, e, f"\n', note="one field")
_add("one column of emails", "email\na@x.example\nb@y.example\n", note="one field")
_add("one value", "42\n", header=False, note="one field")
_add("one word", "word", note="one field")

# Faults of real files.
_add("a space before quotes", 'id, name\n1, "Ann"\n2, "Bob"\n', trim=True)
_add("a space before quotes that are needed", 'id, name\n1, "Ann, B."\n2, "Bob"\n3, "Cy, D., E."\n', trim=True)
_add("a space before quotes in one row", 'a, b\n1, "x, y"\n', trim=True)
_add("a space before single quotes", "id, 'name'\n1, 'Smith, J'\n2, 'Doe'\n", quote="'", trim=True)
_add("spaces on both sides of quotes", '"a" ; "b"\n"1" ; "x; y"\n"2" ; "z"\n', delimiter=";", trim=True)
_add("aligned after quotes", '"Lat", "NS", "City"\n   41, "N", "Ely"\n    7, "S", "Bath, E."\n', trim=True)
_add("a space after a quote that ends a sentence", 'id,text\n1,he said "hi" \n2,no\n')
_add(
    "a log of IIS",
    "#Software: Microsoft IIS 10\r\n#Version: 1.0\r\n#Date: 2024-01-01 00:00:00\r\n#Fields: date time cs-method sc-status time-taken\r\n2024-01-01 00:00:01 GET 200 15\r\n2024-01-01 00:00:02 POST 500 150\r\n",
    delimiter=" ",
    comment="#",
    header=False,
    note="#Fields",
)
_add("a time below its name", "HH:mm:ss.S\n15:02:37.143\n", note="one field")
_add("lists longer than the row", "col1,col2\n1;2;3,4;5;6\na;b;c,d;e;f\n", note="assumed")
_add("number signs as delimiters", "a#b#c\n1#x, y#2\n2#z#3\n3#u, v#4\n", delimiter="#")
_add("quotes in the header alone", 'n\t"Queue (a)"\t"Queue (b)"\n1\t0.5\t\'\'\n2\t0.6\t0.7\n', delimiter="\t")

# What is no table.
_refuse("empty", "", "empty")
_refuse("blank", " \n\n\t\n", "empty")
_refuse(
    "fixed width", "id   name        n\n1    Ann         5\n22   Bob Marley  16\n333  Cy          7\n", "fixed-width"
)
_refuse("fixed width of numbers", "  1   2.5  10\n 12   3.5   9\n123 100.5   8\n", "fixed-width")
_refuse("markdown", "| id | name |\n|----|------|\n| 1 | a |\n| 2 | b |\n", "Markdown")
_refuse("markdown without outer bars", "id | name\n---|-----\n1 | a\n2 | b\n", "Markdown")
_refuse("psql", " id | name \n----+------\n  1 | a\n  2 | b\n(2 rows)\n", "psql")
_refuse("mysql", "+----+------+\n| id | name |\n+----+------+\n|  1 | a    |\n+----+------+\n", "terminal")
_refuse("html", "<!DOCTYPE html>\n<html><body><table><tr><td>1</td></tr></table></body></html>\n", "HTML")
_refuse("xml", '<?xml version="1.0"?>\n<rows><row id="1"/></rows>\n', "XML")
_refuse("json", '[{"a": 1}, {"a": 2}]\n', "JSON")
_refuse("json lines", '{"a": 1, "b": 2}\n{"a": 2, "b": 3}\n', "JSON")
_refuse("pretty json", '{\n  "a": 1,\n  "b": [1, 2]\n}\n', "JSON")
_refuse(
    "access log",
    '127.0.0.1 - - [10/Oct/2000:13:55:36 -0700] "GET /a HTTP/1.0" 200 2326\n127.0.0.2 - bob [10/Oct/2000:13:55:37 -0700] "GET /b HTTP/1.0" 404 12\n',
    "log",
)
_refuse(
    "system log", "Jan  5 10:00:01 host sshd[12]: Failed password\nJan  5 10:00:02 host cron[13]: run, done\n", "log"
)
_refuse(
    "program log",
    "2025-01-01 10:00:00,123 INFO main - started\n2025-01-01 10:00:01,456 ERROR main - failed, badly\n2025-01-01 10:00:02,456 INFO x - done\n",
    "log",
)
_refuse("logfmt", 'level=info msg="started now" n=5\nlevel=error msg="failed, badly" n=6\n', "key=value")
_refuse("settings", "name=x\nport=80\nhost=a.example\n", "settings")
_refuse("sections", "[main]\nname=x\nport=80\n[other]\nhost=a\n", "settings")
_refuse("yaml", "name: x\nport: 80\nhost: a.example\n", "YAML")
_refuse("sql", "INSERT INTO t VALUES (1, 'a');\nINSERT INTO t VALUES (2, 'b');\n", "SQL")
_refuse("two bars", "a||b||c\n1||2||3\n4||5||6\n", "'||'")
_refuse("two colons", "1::1193::5::978300760\n1::661::3::978302109\n2::914::3::978301968\n", "'::'")
