"""Money reaches read models to the last digit, on both engines and in both formats."""

from __future__ import annotations

import sys

import pytest
from support.engines import ENGINES
from support.sqlite import rows_of

from opencqrs_py import Application
from opencqrs_py.model.cloudevents import parse_event

HANDLERS = """
from dataclasses import dataclass
from decimal import Decimal
from opencqrs_py import Metadata, Upcast, event_handling, event_type, on_start, upcaster
from sqlalchemy import Connection, text

@event_type("sold.v2")
@dataclass
class Sold:
    price: Decimal
    serial: int

@upcaster("sold.v1")
def with_serial(data: dict, metadata: Metadata) -> Upcast:
    return Upcast("sold.v2", {**data, "serial": 2**70}, {**metadata, "upcast": True})

@on_start("sales")
def table(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS sales (price TEXT, serial TEXT, upcast TEXT)"))

@event_handling("sales")
def sell(event: Sold, metadata: Metadata, connection: Connection) -> None:
    row = {"price": str(event.price), "serial": str(event.serial), "upcast": str(metadata.get("upcast"))}
    connection.execute(text("INSERT INTO sales VALUES (:price, :serial, :upcast)"), row)
"""

IN_CHUNKS = """
from dataclasses import dataclass
from decimal import Decimal
from opencqrs_py import event_handling, event_type, on_start
from sqlalchemy import Connection, text

@event_type("sold.v2")
@dataclass
class Sold:
    price: Decimal

@on_start("each")
@on_start("many")
def table(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS sales (handler TEXT, price TEXT)"))

def write(connection: Connection, handler: str, price: object) -> None:
    connection.execute(text("INSERT INTO sales VALUES (:handler, :price)"), {"handler": handler, "price": str(price)})

@event_handling("each")
def sell(event: Sold, connection: Connection) -> None:
    write(connection, "each", event.price)

@event_handling("each", types=["returned"])
def take_back(event: dict, connection: Connection) -> None:
    write(connection, "each", event["price"])

@event_handling("many", types=["sold.v2", "returned"])
def list_them(events: list[dict], connection: Connection) -> None:
    for event in events:
        write(connection, "many", event["price"])
"""

WITHOUT_A_NUMBER = """
from opencqrs_py import Upcast, event_handling, upcaster

@upcaster("sold.v1")
def with_discount(data: dict) -> Upcast:
    return Upcast("sold.v2", {**data, "discount": float(DISCOUNT)})

@event_handling("sales", types=["sold.v2"])
def sell(event: dict) -> None: ...
"""

PRICE = "12345678901234567.89"
EVENTS = {
    "plain": [("sold.v1", f'{{"price": {PRICE}}}'), ("sold.v2", f'{{"price": {PRICE}, "serial": {2**70}}}')],
    "envelope": [
        ("sold.v1", f'{{"metadata": null, "payload": {{"price": {PRICE}}}}}'),
        ("sold.v2", f'{{"payload": {{"price": {PRICE}, "serial": {2**70}}}}}'),
    ],
}


def on(engine):
    return {
        "event-handling.standard.processing.engine": engine,
        "spark.master": "local[1]",
        "spark.driver-handles": "never",
    }


@pytest.mark.release(engine="spark", layout="envelope")
@pytest.mark.parametrize("engine", ["thread", pytest.param("spark", marks=pytest.mark.spark)])
@pytest.mark.parametrize("layout", EVENTS)
def test_prices_and_serial_numbers_keep_their_digits(tmp_path, monkeypatch, engine, layout):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / f"sales_{layout}_{engine}.py").write_text(HANDLERS)
    monkeypatch.syspath_prepend(tmp_path / "code")
    module = __import__(f"sales_{layout}_{engine}")
    application = Application(on(engine) | {"events.format": layout}, [module], tmp_path)
    lines = (
        f'{{"id": "{number}", "source": "s", "type": "{kind}", "subject": "/x", "data": {data}}}'
        for number, (kind, data) in enumerate(EVENTS[layout])
    )
    application.event_store.append(map(parse_event, lines))
    assert not application.run(until_caught_up=True).failed
    rows = rows_of(tmp_path / "opencqrs.db", "SELECT * FROM sales ORDER BY upcast")
    assert rows == [(PRICE, str(2**70), "None"), (PRICE, str(2**70), "True")]
    del sys.modules[module.__name__]


@pytest.mark.release(engine="spark")
@pytest.mark.parametrize("engine", ENGINES)
def test_prices_among_others_that_are_decoded_together_keep_their_digits(tmp_path, make_module, engine):
    application = Application(on(engine), [make_module(IN_CHUNKS)], tmp_path)
    prices = ["1.5", "2.5", PRICE, "3.5", PRICE, "4.5"]
    application.event_store.append(
        parse_event(
            f'{{"id": "{number}", "source": "s", "type": "{kind}", "subject": "/x", "data": {{"price": {price}}}}}'
        )
        for number, (kind, price) in enumerate(zip(("sold.v2", "returned") * 3, prices, strict=True))
    )
    assert not application.run(until_caught_up=True).failed
    rows = rows_of(tmp_path / "opencqrs.db", "SELECT handler, price FROM sales ORDER BY handler, price")
    assert rows == sorted((handler, price) for handler in ("each", "many") for price in prices)


@pytest.mark.release(engine="spark", discount=("nan", "inf"))
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("discount", ["nan", "inf", "-inf"])
def test_an_upcaster_that_returns_a_number_not_allowed_in_json_stops_the_partition(
    tmp_path, make_module, engine, discount
):
    module = make_module(WITHOUT_A_NUMBER.replace("DISCOUNT", repr(discount)))
    application = Application(on(engine), [module], tmp_path)
    line = '{"id": "1", "source": "s", "type": "sold.v1", "subject": "/x", "data": {}}'
    application.event_store.append([parse_event(line)])
    assert application.run(until_caught_up=True).failed
    (status,) = application.status()
    (partition,) = status.partitions
    assert partition.position == 0
    assert f"JSON has no {discount}" in partition.error
    application.stop()  # closes the connections opened for the check
