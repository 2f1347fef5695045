"""Invoices for orders. The log merges two systems, so an order may come before its customer."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, text

from opencqrs_py import event_handling, event_type, on_start


@event_type("crm.customer-registered.v1")
@dataclass(frozen=True)
class CustomerRegistered:
    """A customer was registered, and can be invoiced from now on."""

    customer: str
    name: str


@event_type("shop.order-placed.v1")
@dataclass(frozen=True)
class OrderPlaced:
    """An order of a customer, whose registration comes from another system and may be late."""

    order: str
    customer: str
    cents: int


@event_type("shop.order-discounted.v1")
@dataclass(frozen=True)
class OrderDiscounted:
    """The price of an order was reduced."""

    order: str
    cents: int


class UnknownCustomerError(Exception):
    """The customer of an order is not registered yet."""


@on_start("invoices")
def create_tables(connection: Connection) -> None:
    """Create the tables: one row per customer, and one per order."""
    customers = "customer VARCHAR(20) PRIMARY KEY, name VARCHAR(40)"
    connection.execute(text(f"CREATE TABLE IF NOT EXISTS customers ({customers})"))
    invoices = "order_id VARCHAR(20) PRIMARY KEY, name VARCHAR(40), cents BIGINT"
    connection.execute(text(f"CREATE TABLE IF NOT EXISTS invoices ({invoices})"))


@event_handling("invoices")
def register(event: CustomerRegistered, connection: Connection) -> None:
    """Store the name of a customer."""
    connection.execute(text("INSERT INTO customers VALUES (:customer, :name)"), vars(event))


@event_handling("invoices")
def invoice(event: OrderPlaced, connection: Connection) -> None:
    """Write the invoice of an order. If the customer is unknown, this event and later ones of the order are parked."""
    name = connection.execute(text("SELECT name FROM customers WHERE customer = :customer"), vars(event)).scalar()
    if name is None:
        msg = f"customer {event.customer} of order {event.order} is not registered"
        raise UnknownCustomerError(msg)
    row = {"order_id": event.order, "name": name, "cents": event.cents}
    connection.execute(text("INSERT INTO invoices VALUES (:order_id, :name, :cents)"), row)


@event_handling("invoices")
def discount(event: OrderDiscounted, connection: Connection) -> None:
    """Lower an invoice. It exists, because the events of an order are handled in order."""
    connection.execute(text("UPDATE invoices SET cents = cents - :cents WHERE order_id = :order"), vars(event))
