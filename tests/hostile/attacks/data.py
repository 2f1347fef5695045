"""Attacks on the arguments of handlers: data, metadata, lists, and objects shared by attempts, handlers and groups."""

from __future__ import annotations

from dataclasses import replace

from attacks.attack import Attack, End, Firing

__all__ = ["ATTACKS"]

_EITHER = (End.RIGHT, End.STOPPED)
_RIGHT = (End.RIGHT,)
_RAISE = "if first('raised'):\n    raise ValueError('mine')"

_FROM_RAW = "connection.execute(insert(MODEL), {**row(raw.data, raw.metadata), 'position': raw.position})"
_FROM_METADATA = "connection.execute(insert(MODEL), row(event, metadata))"

# The row is written first; then the argument is changed, and an error causes a second attempt.
_BEFORE_A_RETRY = tuple(
    Attack(name=f"{name}, then an error that passes", write=write, after=f"{code}\n{_RAISE}", event=event, ends=_EITHER)
    for name, code, write, event in (
        ("a key is popped from the metadata", "metadata.pop('tenant', None)", _FROM_METADATA, "Counted"),
        ("the metadata are cleared", "metadata.clear()", _FROM_METADATA, "Counted"),
        ("the metadata are set", "metadata['tenant'] = 'other'", _FROM_METADATA, "Counted"),
        ("raw.metadata are changed", "raw.metadata['tenant'] = 'other'", _FROM_RAW, "Counted"),
        ("raw.data are changed", "raw.data['n'] = 99", _FROM_RAW, "Counted"),
        ("a nested list of raw.data is changed", "raw.data['tags'][1]['deep'].append(7)", _FROM_RAW, "Counted"),
        ("raw.data are replaced", "raw.__dict__['data'] = {'n': 99, 'tags': []}", _FROM_RAW, "Counted"),
        ("raw.metadata are replaced", "raw.__dict__['metadata'] = {'tenant': 'other'}", _FROM_RAW, "Counted"),
        ("a nested list of an object is changed", "event.tags[1]['deep'].append(7)", "", "Counted"),
        ("a field of an object is set", "event.n = 99", "", "Counted"),
        ("a dict is changed", "event['tags'].clear()", "", "dict"),
        ("a dict is cleared", "event.clear()", "", "dict"),
    )
)

# Another handler of the group runs first and changes its argument, which the one that writes must not see.
_FIRST = """
@event_handling(GROUP, types=TYPES, order=1)
def change({parameters}):
    if hostile({number}):
        {code}
"""
_BETWEEN_HANDLERS = tuple(
    Attack(
        name=f"an earlier handler: {name}",
        extra=_FIRST.format(parameters=parameters, number=number, code=code) + "\n\nEARLIER = [change]\n",
        write=write,
        event=event,
        ends=_EITHER,
        kinds=("single", "class", "async", "list"),
    )
    for name, parameters, number, code, write, event in (
        ("metadata", "event: Counted, metadata: Metadata", "event.n", "metadata.clear()", _FROM_METADATA, "Counted"),
        ("raw data", "raw: Event", "raw.position", "raw.data['tags'].append(1)", _FROM_RAW, "Counted"),
        ("raw metadata", "raw: Event", "raw.position", "raw.metadata.clear()", _FROM_METADATA, "Counted"),
        ("the event's cached data", "raw: Event", "raw.position", "raw.__dict__['data'] = {}", _FROM_RAW, "Counted"),
        ("a dict", "event: dict", "event['n']", "event['tags'].append(1)", "", "dict"),
        ("a dict beside a dataclass", "event: dict", "event['n']", "event['tags'].append(1)", "", "Counted"),
        ("a mutable dataclass", "event: Counted", "event.n", "event.tags = []", "", "Counted"),
        ("a list in a dataclass", "event: Counted", "event.n", "event.tags.append(1)", "", "Counted"),
        ("a list of objects", "events: list[Counted]", "events[0].n and AT", "events[0].tags.append(1)", "", "Counted"),
        ("a list that is emptied", "events: list[Counted]", "events[0].n and AT", "events.clear()", "", "Counted"),
        (
            "a list of metadata",
            "all_metadata: list[Metadata]",
            "AT",
            "[m.clear() for m in all_metadata]",
            _FROM_METADATA,
            "Counted",
        ),
        ("a list of raw events", "raws: list[Event]", "AT", "raws.reverse()", _FROM_RAW, "Counted"),
    )
)

_LISTS = tuple(
    Attack(
        name=name,
        after=f"if first('raised'):\n    {code}\n    raise ValueError('mine')",
        kinds=("list",),
        ends=_RIGHT,
        write=write,
    )
    for name, code, write in (
        ("events are popped from the list, then an error that passes", "events.pop(0)", ""),
        ("the list is cleared, then an error that passes", "events.clear()", ""),
        ("the list of raw events is reversed, then an error that passes", "all_raw.reverse()", _FROM_RAW),
        ("the list of metadata is cleared, then an error that passes", "all_metadata.clear()", _FROM_METADATA),
        ("an object of the list is changed, then an error that passes", "events[0].tags.append('x')", ""),
    )
)

_OTHER = (
    Attack(
        name="the context is changed by force",
        asks={"context": "ProcessingContext"},
        before="object.__setattr__(context, 'position', 99)\nobject.__setattr__(context, 'group', 'other')",
        ends=_EITHER,
    ),
    Attack(
        name="the context is changed",
        asks={"context": "ProcessingContext"},
        before="context.position = 99",
    ),
    Attack(
        name="a field of the raw event is set",
        asks={"raw": "Event"},
        before="raw.position = 99",
    ),
    Attack(
        name="the partition is changed by force",
        asks={"context": "ProcessingContext"},
        before="object.__setattr__(context.partition, 'residue', 7)",
        ends=_EITHER,
        process_wide=True,
    ),
    Attack(
        name="the event class is changed",
        before="Counted.__init__ = lambda self, *_, **__: 1 / 0",
        ends=_EITHER,
        process_wide=True,
    ),
    Attack(
        name="a class attribute collects what events have",
        extra="Counted.seen = []",
        before="event.seen.append(event.n)",
        ends=_RIGHT,
    ),
    Attack(
        name="two groups of one process see the same metadata",
        extra="""
@event_handling(f"{GROUP}-second", types=TYPES)
def second(metadata: Metadata, raw: Event, connection: Connection):
    metadata.clear()
    raw.data.clear()
""",
        write=_FROM_RAW.replace("raw.data, raw.metadata", "raw.data, metadata"),
        ends=_RIGHT,
        engines=("thread", "spark"),
    ),
)

ATTACKS = (
    *(replace(attack, firing=Firing.ALWAYS) for attack in _BEFORE_A_RETRY),
    *_BETWEEN_HANDLERS,
    *_LISTS,
    *_OTHER,
)
