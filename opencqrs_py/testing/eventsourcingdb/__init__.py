"""A stand-in for EventSourcingDB: a small server that speaks its documented protocol, and misbehaves on request."""

from opencqrs_py.testing.eventsourcingdb.faults import Fault, Then
from opencqrs_py.testing.eventsourcingdb.log import EventLog
from opencqrs_py.testing.eventsourcingdb.server import EventSourcingDbStandIn

__all__ = ["EventLog", "EventSourcingDbStandIn", "Fault", "Then"]
