import pytest

from opencqrs_py.config.profiles import applies, is_profile_name, mentioned


@pytest.mark.parametrize(
    ("expression", "active", "holds"),
    [
        ("prod", {"prod"}, True),
        ("prod", {"test"}, False),
        ("not prod", {"prod"}, False),
        ("!prod", {"test"}, True),
        ("not not prod", {"prod"}, True),
        ("prod and eu", {"prod", "eu"}, True),
        ("prod & eu", {"prod"}, False),
        ("prod or eu", {"eu"}, True),
        ("a | b | c", {"c"}, True),
        ("prod and (eu or us)", {"prod", "us"}, True),
        ("(prod and eu) or test", {"test"}, True),
        ("not (a or b)", {"c"}, True),
        ("not a and b", {"b"}, True),
        ("not a or b", {"a", "b"}, True),
        ("PROD", {"prod"}, False),
        ("a-b_c.d+e@f", {"a-b_c.d+e@f"}, True),
        ("notable", {"notable"}, True),
        ("a AND b", {"a", "b"}, True),
    ],
)
def test_profile_expressions_are_evaluated(expression, active, holds):
    assert applies([expression], active) is holds


def test_one_of_several_expressions_is_enough():
    assert applies(["a", "b and c"], {"a"})
    assert not applies(["a", "b and c"], {"b"})
    assert not applies([], {"a"})


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("a and b or c", "mixed without brackets"),
        ("a &", "a name is missing"),
        ("& a", "a name is missing"),
        ("", "a name is missing"),
        ("(a", "a bracket is not closed"),
        ("(a b)", "a bracket is not closed"),
        ("a)", r"'\)' is not expected there"),
        ("a b", "'b' is not expected there"),
        ("a, b", "',' is not part of an expression"),
        ("()", "a name is missing"),
    ],
)
def test_broken_expressions_are_refused(expression, message):
    with pytest.raises(ValueError, match=message):
        applies(["fine", expression], {"fine"})


def test_the_profiles_mentioned_in_expressions_are_found():
    assert mentioned(["a and not (b or c)", "d"]) == {"a", "b", "c", "d"}


@pytest.mark.parametrize(
    ("name", "valid"),
    [
        ("prod", True),
        ("eu-1.x_y+z@w", True),
        ("", False),
        ("a b", False),
        ("a,b", False),
        ("not", False),
        ("AND", False),
    ],
)
def test_profile_names_are_validated(name, valid):
    assert is_profile_name(name) is valid
