"""Addresses: which URLs name an EventSourcingDB, and their base URLs."""

from __future__ import annotations

import re

import pytest

from opencqrs_py.adapters.eventsourcingdb import Address
from opencqrs_py.errors import EventStoreError


@pytest.mark.parametrize(
    ("url", "base_url"),
    [
        ("eventsourcingdb://localhost", "http://localhost:3000"),
        ("eventsourcingdb://localhost:4000/", "http://localhost:4000"),
        ("eventsourcingdb+http://10.0.0.1:1", "http://10.0.0.1:1"),
        ("eventsourcingdb+https://db.example", "https://db.example:3000"),
        ("eventsourcingdb+https://db.example:443/esdb/", "https://db.example:443/esdb"),
        ("EventSourcingDB://[::1]:3001", "http://[::1]:3001"),
    ],
)
def test_an_address_is_read_from_its_url(url: str, base_url: str) -> None:
    assert Address.is_meant(url)
    assert Address.parse(url) == Address(base_url, url)


@pytest.mark.parametrize("url", ["sqlite:///x.db", "postgresql://h/d", "file:///x", "", "events.ndjson"])
def test_urls_of_other_stores_are_not_recognised(url: str) -> None:
    assert not Address.is_meant(url)


@pytest.mark.parametrize(
    "url",
    [
        "http:",
        "eventsourcingdb:",
        "eventsourcingdb://",
        "eventsourcingdb://:3000",
        "eventsourcingdb://host:port",
        "eventsourcingdb://host:99999",
        "eventsourcingdb://[::1",
        "eventsourcingdb://host?token=hidden",
        "eventsourcingdb://host/#hidden",
    ],
)
def test_an_invalid_address_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(EventStoreError, match=r"OCQ-330[\s\S]*eventsourcingdb://host:3000") as raised:
        Address.parse(url)
    assert "hidden" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "right"),
    [
        ("http://localhost:3000", "eventsourcingdb://localhost:3000"),
        ("HTTP://localhost/", "eventsourcingdb://localhost"),
        ("https://db.example:443/esdb/", "eventsourcingdb+https://db.example:443/esdb"),
        ("esdb://db:2113?tls=false", "eventsourcingdb://db:2113"),
    ],
)
def test_an_http_address_is_refused_with_the_right_form(url: str, right: str) -> None:
    assert Address.is_meant(url)
    with pytest.raises(EventStoreError, match=rf"OCQ-330\][\s\S]*write it as {re.escape(right)}$"):
        Address.parse(url)
    Address.parse(right)


@pytest.mark.parametrize(
    "url", ["eventsourcingdb://:hidden@host", "eventsourcingdb://hidden@host:3000", "http://hidden@host:3000"]
)
def test_a_token_in_the_url_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(EventStoreError, match=r"event-store\.api-token") as raised:
        Address.parse(url)
    assert "hidden" not in str(raised.value)
