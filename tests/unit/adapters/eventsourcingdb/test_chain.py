"""The hash chain: links as text, and the links already seen."""

from __future__ import annotations

import pytest

from opencqrs_py.adapters.eventsourcingdb.chain import Link, SeenChain
from opencqrs_py.errors import EventStoreError
from opencqrs_py.model import Event


@pytest.mark.parametrize("hash_text", ["0" * 64, "esdb:hash:v2:" + "a" * 64])
def test_a_link_is_parsed_from_its_fingerprint(hash_text: str) -> None:
    link = Link(42, hash_text)
    assert link.fingerprint == f"eventsourcingdb:41:{hash_text}"
    assert Link.parse(link.fingerprint) == link


@pytest.mark.parametrize(
    "text",
    ["", "eventsourcingdb:", "eventsourcingdb:empty", "eventsourcingdb:-1:a", "eventsourcingdb:1:", "41:a", "٣:a"],
)
def test_other_strings_are_not_fingerprints_of_a_link(text: str) -> None:
    assert Link.parse(text) is None


@pytest.mark.parametrize("extensions", [None, "{}", "[]", '{"hash":1}', '{"hash":""}'])
def test_an_event_without_a_hash_has_no_link(extensions: str | None) -> None:
    assert Link.of(Event(1, "0", "s", "/", "t", None, "application/json", "{}", extensions)) is None


def test_a_known_link_must_not_change() -> None:
    chain = SeenChain("here")
    chain.keep([Link(1, "a"), Link(2, "b")])
    chain.keep([Link(2, "b")])
    assert (chain.at(1), chain.at(3), chain.newest) == (Link(1, "a"), None, Link(2, "b"))
    with pytest.raises(EventStoreError, match="OCQ-316") as raised:
        chain.keep([Link(1, "x")])
    assert raised.value.where == "here"
    assert chain.at(1) == chain.doubted == Link(1, "a")
