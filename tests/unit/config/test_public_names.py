import pickle

import pytest

import opencqrs_py.config
from opencqrs_py.config import EffectiveGroup, Origin, OriginKind, Settings


@pytest.mark.parametrize("name", opencqrs_py.config.__all__)
def test_every_public_name_can_be_imported(name):
    assert getattr(opencqrs_py.config, name) is not None


def test_public_names_are_sorted():
    assert opencqrs_py.config.__all__ == sorted(opencqrs_py.config.__all__)


def test_an_unknown_name_raises_attribute_error():
    with pytest.raises(AttributeError, match=r"module 'opencqrs_py.config' has no attribute 'nothing'"):
        opencqrs_py.config.nothing  # noqa: B018


@pytest.mark.parametrize("kind", OriginKind)
def test_every_kind_of_origin_can_be_shown(kind):
    assert "{" not in str(Origin(kind, "place", 1, 2, of=Origin(OriginKind.FILE, "file", 3)))


def test_settings_survive_pickling():
    settings = Settings(event_handling={"groups": {"books": {"retry": {"max_elapsed_time": "infinite"}}}})
    copy = pickle.loads(pickle.dumps(settings))
    assert copy == settings
    assert copy.event_handling.said_of("books") == {("retry", "max_elapsed_time"): "infinite"}


def test_a_group_is_a_value():
    assert EffectiveGroup("a") == EffectiveGroup("a")
    assert len({EffectiveGroup("a"), EffectiveGroup("a"), EffectiveGroup("b")}) == 2
