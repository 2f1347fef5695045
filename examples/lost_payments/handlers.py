"""Orders are shipped when their payment arrives. If the payment event was lost, the job ``reconcile`` ships them."""

from dataclasses import dataclass

from sqlalchemy import Column, Connection, MetaData, Select, String, Table, insert, select

from opencqrs_py import JobContext, event_handling, event_type, job, on_start

tables = MetaData()
orders = Table("orders", tables, Column("order_id", String(9), primary_key=True))
shipments = Table("shipments", tables, Column("order_id", String(9), primary_key=True), Column("shipped_by", String(9)))
statement = Table("bank_statement", tables, Column("order_id", String(9), primary_key=True))  # see bank.py


@event_type("shop.order-placed.v1")
@dataclass(frozen=True)
class OrderPlaced:
    """An order, shipped once it is paid."""

    order: str


@event_type("shop.payment-received.v1")
@dataclass(frozen=True)
class PaymentReceived:
    """The payment of an order."""

    order: str


@on_start("shipping")
def create_tables(connection: Connection) -> None:
    """Create the tables."""
    tables.create_all(connection)


@event_handling("shipping")
def store(event: OrderPlaced, connection: Connection) -> None:
    """Store an order."""
    connection.execute(insert(orders).values(order_id=event.order))


@event_handling("shipping")
def ship(event: PaymentReceived, connection: Connection) -> None:
    """Ship an order, unless the event was late and the job has shipped it already."""
    if connection.execute(select(shipments).where(shipments.c.order_id == event.order)).first() is None:
        connection.execute(insert(shipments).values(order_id=event.order, shipped_by="event"))


def paid_but_not_shipped() -> Select[tuple[str]]:
    """Select the orders that are paid according to the bank, but not shipped."""
    paid = select(orders.c.order_id).join(statement, statement.c.order_id == orders.c.order_id)
    return paid.where(orders.c.order_id.not_in(select(shipments.c.order_id)))


@job("reconcile", input=paid_but_not_shipped)
def reconcile(context: JobContext, connection: Connection) -> None:
    """Ship one order. If the handler has just done so, the insert fails, and the next attempt omits the order."""
    connection.execute(insert(shipments).values(order_id=context.id, shipped_by="job"))
