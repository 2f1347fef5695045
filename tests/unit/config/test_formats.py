"""Keys, values and places read from files."""

import pytest

from opencqrs_py.config.entries import Nothing, Origin, OriginKind
from opencqrs_py.config.problems import Findings
from opencqrs_py.config.properties_file import properties_documents
from opencqrs_py.config.toml_file import toml_documents
from opencqrs_py.config.yaml_file import yaml_documents

FILE = Origin(OriginKind.FILE, "f")


def parsed(parse, text):
    findings = Findings()
    documents = parse(text, FILE, findings)
    entries = [[(".".join(entry.key), entry.value, str(entry.origin)) for entry in document] for document in documents]
    return entries, [(error.what, error.where) for error in findings.errors]


def only_document(parse, text):
    (document,), errors = parsed(parse, text)
    assert errors == []
    return document


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("a: 1", [("a", "1", "f:1:4")]),
        ("a: {b: x, c: }", [("a.b", "x", "f:1:8"), ("a.c", Nothing.EMPTY, "f:1:14")]),
        (
            "a: ~\nb: null\nc: 'null'\nd: ''",
            [("a", None, "f:1:4"), ("b", None, "f:2:4"), ("c", "null", "f:3:4"), ("d", "", "f:4:4")],
        ),
        ("a: [1, no, ~]", [("a", ("1", "no", None), "f:1:4")]),
        ("a: []", [("a", (), "f:1:4")]),
        ("a: [{b: 1}]", [("a", Nothing.NESTED_LIST, "f:1:4")]),
        ("a: {}", [("a", Nothing.SECTION, "f:1:4")]),
        ("a: |\n  x\n  y\n", [("a", "x\ny", "f:1:4")]),
        ("a: >\n  x\n  y\n", [("a", "x y", "f:1:4")]),
        ('a: "x\\ty"', [("a", "x\ty", "f:1:4")]),
        ("a: !!int 3", [("a", "3", "f:1:4")]),
        (
            "x: &x {b: 1, c: 2}\na: *x",
            [("x.b", "1", "f:1:11"), ("x.c", "2", "f:1:17"), ("a.b", "1", "f:1:11"), ("a.c", "2", "f:1:17")],
        ),
        (
            "x: &x {b: 1, c: 2}\na: {<<: *x, b: 3}",
            [("x.b", "1", "f:1:11"), ("x.c", "2", "f:1:17"), ("a.b", "3", "f:2:16"), ("a.c", "2", "f:1:17")],
        ),
        (
            "x: &x {b: 1}\ny: &y {b: 2, c: 2}\na: {<<: [*x, *y]}",
            [
                ("x.b", "1", "f:1:11"),
                ("y.b", "2", "f:2:11"),
                ("y.c", "2", "f:2:17"),
                ("a.b", "1", "f:1:11"),
                ("a.c", "2", "f:2:17"),
            ],
        ),
        ("a: {<<: , b: 1}", [("a.b", "1", "f:1:14")]),
        ("a: {'<<': 1}", [("a.<<", "1", "f:1:11")]),
    ],
)
def test_yaml_is_parsed(text, entries):
    assert sorted(only_document(yaml_documents, text), key=str) == sorted(entries, key=str)


@pytest.mark.parametrize(
    ("text", "what", "where"),
    [
        ("a: &a {b: *a}", "an alias refers to the node that contains it", "f:1:4"),
        ("a: {<<: text, b: 1}", "<< is followed by the text text, not by a section", "f:1:9"),
        ("a: &a {<<: *a}", "an alias refers to the node that contains it", "f:1:4"),
        ("? [a]\n: b", "a key is a list or a section", "f:1:3"),
        ("a: !x {b: c}", "the YAML tag !x is not known", "f:1:4"),
        ("a: !env B", "the YAML tag !env is not known", "f:1:4"),
        ("a: [b, !env C]", "the YAML tag !env is not known", "f:1:8"),
        ("a: !CANARY", "a text that begins with ! is not in quotes", "f:1:4"),
        ("a: [!CANARY, b]", "a text that begins with ! is not in quotes", "f:1:5"),
        ("api-token: !CANARY x", "a text that begins with ! is not in quotes", "f:1:12"),
        ("a: 1\na: 2", "the key a appears twice, first in line 1", "f:2:1"),
    ],
)
def test_yaml_that_cannot_be_read_as_settings_is_an_error(text, what, where):
    assert parsed(yaml_documents, text)[1] == [(what, where)]


def test_yaml_documents_are_kept_apart():
    documents, errors = parsed(yaml_documents, "a: 1\n---\n---\nb: 2\n")
    assert documents == [[("a", "1", "f:1:4")], [], [("b", "2", "f:4:4")]]
    assert errors == []


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("a = 1", [("a", "1", "f:1:5")]),
        ("[a.b]\nc = true", [("a.b.c", "true", "f:2:5")]),
        ("[a]\n'b.c' = 1.50", [("a.b.c", "1.50", "f:2:9")]),
        ('["a b"]\nc . "d" = "x" # y', [("a b.c.d", "x", "f:2:11")]),
        ("a = [1, 2]", [("a", ("1", "2"), "f:1:5")]),
        ("a = [{b = 1}]", [("a", Nothing.NESTED_LIST, "f:1:5")]),
        ("a = { b = 1 }", [("a.b", "1", "f:1:1")]),
        ("a = {}", [("a", Nothing.SECTION, "f:1:5")]),
        ("a = 2024-05-31", [("a", "2024-05-31", "f:1:5")]),
        ("a = 2024-05-31T12:00:00Z", [("a", "2024-05-31T12:00:00+00:00", "f:1:5")]),
        ('a = """\nb = 2\n"""\nc = 3', [("a", "b = 2\n", "f:1:5"), ("c", "3", "f:4:5")]),
        ("a = '''b = 2'''\nc = 3", [("a", "b = 2", "f:1:5"), ("c", "3", "f:2:5")]),
        ('"a\\u00e4" = 1', [("aä", "1", "f")]),
        ("[[a]]\nb = 1", [("a", Nothing.NESTED_LIST, "f")]),
    ],
)
def test_toml_is_parsed(text, entries):
    found = only_document(toml_documents, text)
    assert found == entries


def test_an_empty_toml_file_has_no_document():
    assert parsed(toml_documents, "# nothing\n") == ([], [])


@pytest.mark.parametrize(
    ("text", "what", "where"),
    [
        ("a = x", "it is not TOML: Invalid value", "f:1:5"),
        ('a = "', "it is not TOML: Unterminated string (at end of document)", "f"),
    ],
)
def test_broken_toml_is_an_error(text, what, where):
    assert parsed(toml_documents, text) == ([], [(what, where)])


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        (
            "a=1\nb: 2\nc 3\n d = 4 ",
            [("a", "1", "f:1:3"), ("b", "2", "f:2:4"), ("c", "3", "f:3:3"), ("d", "4 ", "f:4:6")],
        ),
        ("# no\n! no\n\na=1", [("a", "1", "f:4:3")]),
        ("a=x\\\n   y\\\n  z\nb=2", [("a", "xyz", "f:1:3"), ("b", "2", "f:4:3")]),
        ("a=x\\\\\nb=2", [("a", "x\\", "f:1:3"), ("b", "2", "f:2:3")]),
        ("a=x\\", [("a", "x", "f:1:3")]),
        ("a\\ b\\=c=\\u00e4\\t\\n\\q", [("a b=c", "ä\t\nq", "f:1:9")]),
        ("a=null\nb=", [("a", None, "f:1:3"), ("b", "", "f:2:3")]),
        ("a", [("a", "", "f:1:2")]),
        ("a=\\\n", [("a", "", "f:1:3")]),
        ("\\\n\nb=1", [("b", "1", "f:3:3")]),
        ("# no \\\na=1\nb=\\\n # yes", [("a", "1", "f:2:3"), ("b", "# yes", "f:3:3")]),
    ],
)
def test_properties_are_parsed(text, entries):
    assert only_document(properties_documents, text) == entries


def test_properties_documents_are_kept_apart():
    documents, errors = parsed(properties_documents, "a=1\n#---\na=2\n!---\n")
    assert documents == [[("a", "1", "f:1:3")], [("a", "2", "f:3:3")], []]
    assert errors == []


def test_a_duplicate_key_in_properties_is_an_error():
    assert parsed(properties_documents, "a=1\na=2")[1] == [("the key a appears twice, first in line 1", "f:2:1")]
