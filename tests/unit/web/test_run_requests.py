"""Requests for a run: their content and their authorisation."""

from __future__ import annotations

import json
from email.message import Message

import pytest

from opencqrs_py.web.run_requests import RequestRefusedError, RunRequest, require_token, run_request
from opencqrs_py.web.server import Request

TOKEN = "s3cr3t-t0ken"


def request(body: bytes = b"", *headers: tuple[str, str]) -> Request:
    message = Message()
    for name, value in headers:
        message.add_header(name, value)
    return Request("POST", "/jobs/remind/runs", "", message, body)


@pytest.mark.parametrize(
    ("body", "ids"),
    [
        (b"", ()),
        (b" \r\n", ()),
        (b"{}", ()),
        (b'{"ids": ["4711", 7]}', ("4711", 7)),
        ('{"ids": ["\u00e4"]}'.encode(), ("\u00e4",)),
        (b'{"ids": [18446744073709551615, -9223372036854775808]}', (2**64 - 1, -(2**63))),
    ],
)
def test_ids_are_strings_or_integers_and_without_a_body_the_run_is_for_all(body, ids):
    assert run_request(request(body)) == RunRequest(ids)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"ids=4711", "the body is not JSON"),
        (b'{"ids": ["4711"', "the body is not JSON"),
        (b'{"ids": ["\xff"]}', "the body is not JSON"),
        (b"[" * 60_000, "the body is not JSON"),
        (b'["4711"]', "the body is not a JSON object"),
        (b"null", "the body is not a JSON object"),
        (b'{"id": "4711"}', "unknown key 'id'"),
        (b'{"ids": ["1"], "force\\n": true}', "unknown key 'force?'"),
        (b'{"ids": [1], "ids": [2]}', "ids"),
        (b'{"ids": null}', "ids is not a list"),
        (b'{"ids": "4711"}', "ids is not a list"),
        (b'{"ids": []}', "ids is empty"),
        (b'{"ids": ["1", true]}', "ids[1] is neither"),
        (b'{"ids": [1.0]}', "ids[0] is neither"),
        (b'{"ids": [18446744073709551616]}', "ids[0] is neither"),
        (b'{"ids": [["1"]]}', "ids[0] is neither"),
        (b'{"ids": [null]}', "ids[0] is neither"),
    ],
)
def test_an_invalid_body_is_refused_in_one_line_and_not_run_for_all(body, says):
    with pytest.raises(RequestRefusedError) as raised:
        run_request(request(body))
    answer = raised.value.answer
    text = answer.body.decode()
    assert answer.status == 400
    assert says in text
    assert text.count("\n") == 1
    assert len(text) < 400


@pytest.mark.parametrize("key", ["k", "x" * 64, "order 7/A"])
def test_an_idempotency_key_is_used_verbatim(key):
    assert run_request(request(b"", ("idempotency-key", key))).key == key


@pytest.mark.parametrize(
    "headers",
    [
        [("Idempotency-Key", "")],
        [("Idempotency-Key", "x" * 65)],
        [("Idempotency-Key", "\u00e4")],
        [("Idempotency-Key", "a\tb")],
        [("Idempotency-Key", "a"), ("Idempotency-Key", "b")],
    ],
)
def test_an_invalid_idempotency_key_is_refused(headers):
    with pytest.raises(RequestRefusedError) as raised:
        run_request(request(b"", *headers))
    assert raised.value.answer.status == 400
    assert raised.value.answer.body.startswith(b"Idempotency-Key takes 1 to 64 printable characters")


@pytest.mark.parametrize("value", [f"Bearer {TOKEN}", f"bearer {TOKEN}", f"BEARER  {TOKEN} "])
def test_a_request_with_the_token_is_authorised(value):
    require_token(request(b"", ("authorization", value)), TOKEN)


@pytest.mark.parametrize(
    "values",
    [
        [],
        [""],
        ["Bearer"],
        ["Bearer "],
        [TOKEN],
        [f"Basic {TOKEN}"],
        [f"Bearer {TOKEN[:-1]}"],
        [f"Bearer {TOKEN}x"],
        [f"Bearer {TOKEN.upper()}"],
        ["Bearer \u00e4"],
        [f"Bearer {TOKEN}", f"Bearer {TOKEN}"],
    ],
)
def test_a_request_without_the_token_is_refused_with_401(values):
    with pytest.raises(RequestRefusedError) as raised:
        require_token(request(b"", *(("Authorization", value) for value in values)), TOKEN)
    answer = raised.value.answer
    assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, 'Bearer realm="opencqrs"')
    assert TOKEN not in answer.body.decode() + json.dumps(dict(answer.headers))


def test_without_a_configured_token_every_request_is_refused_and_the_setting_is_named():
    with pytest.raises(RequestRefusedError) as raised:
        require_token(request(b"", ("Authorization", "Bearer None")), None)
    assert raised.value.answer.status == 403
    assert "http.token" in raised.value.answer.body.decode()
