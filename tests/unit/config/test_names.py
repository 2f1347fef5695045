import pytest

from opencqrs_py.config.keys import kebab, split_key
from opencqrs_py.model.naming import canonical, letters_and_digits, listed, nearest


@pytest.mark.parametrize("name", ["life-cycle", "lifeCycle", "life_cycle", "LIFE_CYCLE", "LifeCycle", "LIFECYCLE"])
def test_all_spellings_of_a_name_have_one_canonical_form(name):
    assert canonical(name) == "lifecycle"


def test_a_variable_can_express_only_letters_and_digits():
    assert letters_and_digits("Book-Catalog v1.2") == "bookcatalogv12"


@pytest.mark.parametrize(("field", "written"), [("life_cycle", "life-cycle"), ("import_", "import")])
def test_fields_are_written_in_kebab_case(field, written):
    assert kebab(field) == written


@pytest.mark.parametrize(
    ("key", "pieces"),
    [
        ("a", ("a",)),
        ("a.b-c.d", ("a", "b-c", "d")),
        ("groups[v1.2].fetch", ("groups", "v1.2", "fetch")),
        ("active[0]", ("active", "0")),
        (" a . b ", ("a", "b")),
        ("a..b", ("a", "b")),
        ("", ("",)),
        (".", (".",)),
        ("[]", ("[]",)),
    ],
)
def test_keys_are_split_at_dots_outside_brackets(key, pieces):
    assert split_key(key) == pieces


def test_the_nearest_name_is_found_in_any_spelling():
    assert nearest("AUTO_STRAT", ["auto-start", "controller"]) == "auto-start"
    assert nearest("something", ["auto-start", "controller"]) is None


def test_lists_are_cut_after_ten_items():
    assert listed("abc") == "a, b, c"
    assert listed(str(number) for number in range(12)) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more"
    assert [listed("ab", total) for total in (2, 1_000)] == ["a, b", "a, b and 998 more"]
