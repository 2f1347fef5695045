"""Checks of the answering server: redirects to another origin are refused, and so are responses of other servers.

The client has no error for the first and no error class for the second, so its aiohttp session is traced.
"""

from __future__ import annotations

from functools import partial
from http import HTTPStatus

import aiohttp
from eventsourcingdb import Client
from yarl import URL

from opencqrs_py.adapters.eventsourcingdb.address import Address
from opencqrs_py.errors import EventStoreError
from opencqrs_py.model.masking import scrubbed

PASSING = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}
_LASTING = {HTTPStatus.NOT_IMPLEMENTED, HTTPStatus.INSUFFICIENT_STORAGE}  # the latter for the license, too
_WITHOUT_V2 = {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED}  # after which the client tries version 1
_LONGEST = 60  # characters of a header that are shown


class RedirectedError(EventStoreError):
    """The server redirects to another origin, which is not followed (OCQ-348)."""


def refuse_others(client: Client, label: str) -> None:
    """Have an open client raise OCQ-348 for redirects to another origin, and OCQ-334 for responses of other servers.

    Without this aiohttp follows the redirect. It drops the token, but sends the body, which may contain events, and
    treats the other server's response as events.
    """
    tracing = aiohttp.TraceConfig()
    tracing.on_request_redirect.append(partial(_refuse_redirect, label))
    tracing.on_request_end.append(partial(_refuse_other_server, label))
    tracing.freeze()
    for held in vars(client.http_client).values():  # the client does not expose its session
        if isinstance(held, aiohttp.ClientSession):
            held.trace_configs.append(tracing)


async def _refuse_redirect(label: str, _: object, __: object, at: aiohttp.TraceRequestRedirectParams) -> None:
    answer = at.response
    try:
        target = answer.url.join(URL(answer.headers.get("Location", ""))).origin()
    except ValueError:
        raise _redirected("to no address", label, "") from None
    if target != answer.url.origin():
        raise _redirected(f"to another server ({target})", label, Address.of_origin(str(target)))


def _redirected(target: str, label: str, meant: str) -> RedirectedError:
    fix = f"if your EventSourcingDB is there, set event-store.url to {meant}" if meant else "correct event-store.url"
    what = f"EventSourcingDB redirects {target}, which is not followed: token and events are for the named one only"
    return RedirectedError("OCQ-348", scrubbed(what), label, scrubbed(fix))


async def _refuse_other_server(label: str, _: object, __: object, at: aiohttp.TraceRequestEndParams) -> None:
    answer = at.response
    server = answer.headers.get("Server", "")
    if server.startswith("EventSourcingDB/") or passes(answer.status):
        return
    if answer.status in _WITHOUT_V2 and "/api/v2/" in answer.url.path:
        return
    found = [f"status {answer.status}", answer.headers.get("Content-Type", ""), server and f"Server: {server}"]
    what = f"the response does not come from EventSourcingDB ({', '.join(each[:_LONGEST] for each in found if each)})"
    fix = "correct event-store.url; a proxy in front of EventSourcingDB must pass on its header Server"
    raise EventStoreError("OCQ-334", scrubbed(what), label, fix)


def passes(status: int) -> bool:
    """Return whether this is the status of a server, or of a proxy before it, that is temporarily unavailable."""
    return status in PASSING or (status >= HTTPStatus.INTERNAL_SERVER_ERROR and status not in _LASTING)
