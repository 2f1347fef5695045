import pytest

from opencqrs_py.config.placeholders import Found, PlaceholderError, Resolver, has_placeholder

KNOWN = {
    "host": "example.org",
    "port": "5432",
    "url": "http://${host}:${port}",
    "which": "host",
    "loop": "a ${pool}",
    "pool": "${loop}",
    "self": "${self}",
    "empty": "",
    "to-nothing": "${nothing}",
}


def lookup(name):
    return Found(KNOWN[name], secret=name == "port") if name in KNOWN else None


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("plain", "plain"),
        ("${host}", "example.org"),
        ("<${host}|${ port }>", "<example.org|5432>"),
        ("${url}/x", "http://example.org:5432/x"),
        ("${nothing:default}", "default"),
        ("${nothing:}", ""),
        ("${empty:default}", ""),
        ("${nothing:a:b}", "a:b"),
        ("${nothing:${host}}", "example.org"),
        ("${nothing:${nobody:${port}}}", "5432"),
        ("${${which}}", "example.org"),
        ("${nothing:{a: {b}}}", "{a: {b}}"),
        ("{${host}}", "{example.org}"),
        (r"\${host}", "${host}"),
        (r"a\${host}b${port}", "a${host}b5432"),
        (r"${nothing:\${host}}", "${host}"),
        ("$host {host} $ {host}", "$host {host} $ {host}"),
        ("${host", None),
        ("${host:${port}", None),
    ],
)
def test_placeholders_are_resolved(text, result):
    if result is None:
        with pytest.raises(PlaceholderError, match="is not closed"):
            Resolver(lookup).text(text)
    else:
        assert Resolver(lookup).text(text).text == result


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("${nothing}", r"there is no value for \$\{nothing\}"),
        ("${to-nothing:default}", r"there is no value for \$\{nothing\}"),
        ("${loop}", r"\$\{loop\} refers to itself"),
        ("${self:default}", r"\$\{self\} refers to itself"),
        ("${a.${port}}", r"there is no value for \$\{a.\$\{port\}\}"),
    ],
)
def test_an_unresolvable_placeholder_is_named_as_written(text, message):
    with pytest.raises(PlaceholderError, match=message):
        Resolver(lookup).text(text)


def test_a_secret_makes_the_whole_value_secret():
    assert Resolver(lookup).text("${url}").secret
    assert Resolver(lookup).text("${nothing:${port}}").secret
    assert not Resolver(lookup).text("${host}").secret


def test_placeholders_are_detected():
    assert has_placeholder("a ${b}")
    assert not has_placeholder("a $b {c}")
