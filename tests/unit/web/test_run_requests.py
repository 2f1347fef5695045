"""What a request for a run may say, and who may send it."""

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
def test_ids_are_texts_and_whole_numbers_and_without_a_body_the_run_is_for_all(body, ids):
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
def test_what_is_not_understood_is_refused_in_one_line_and_not_run_for_all(body, says):
    with pytest.raises(RequestRefusedError) as raised:
        run_request(request(body))
    answer = raised.value.answer
    text = answer.body.decode()
    assert answer.status == 400
    assert says in text
    assert text.count("\n") == 1
    assert len(text) < 400


@pytest.mark.parametrize("key", ["k", "x" * 64, "order 7/A"])
def test_a_key_is_taken_as_it_is(key):
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
def test_a_key_that_is_none_is_refused(headers):
    with pytest.raises(RequestRefusedError) as raised:
        run_request(request(b"", *headers))
    assert raised.value.answer.status == 400
    assert raised.value.answer.body.startswith(b"Idempotency-Key takes 1 to 64 printable characters")


@pytest.mark.parametrize("value", [f"Bearer {TOKEN}", f"bearer {TOKEN}", f"BEARER  {TOKEN} "])
def test_who_sends_the_token_may_ask(value):
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
def test_who_sends_none_or_another_one_may_not(values):
    with pytest.raises(RequestRefusedError) as raised:
        require_token(request(b"", *(("Authorization", value) for value in values)), TOKEN)
    answer = raised.value.answer
    assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, 'Bearer realm="opencqrs"')
    assert TOKEN not in answer.body.decode() + json.dumps(dict(answer.headers))


def test_while_no_token_is_set_nobody_may_ask_and_the_setting_is_named():
    with pytest.raises(RequestRefusedError) as raised:
        require_token(request(b"", ("Authorization", "Bearer None")), None)
    assert raised.value.answer.status == 403
    assert "http.token" in raised.value.answer.body.decode()
