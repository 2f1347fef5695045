"""The record of a group: what a claim keeps, warns about and refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from opencqrs_py.errors import BeginningNeededError, ExplainedError, HandlersChangedError, ProgressLostError
from opencqrs_py.model import layout
from opencqrs_py.model.choices import OnChangedHandlers, OnLost
from opencqrs_py.model.group_record import FoundGroup, GroupRecord, HandlersChange, RecordedLayout, RecordedSelection
from opencqrs_py.processing.group_records import GroupCode, RecordRule, Warned, same_code
from opencqrs_py.testing import FakeClock

NOW = "2026-01-01T00:00:00.000+00:00"
CODE = GroupCode("1:handlers", "1:sequences")
RECORDED = RecordedLayout(layout(2), 1)
RECORD = GroupRecord("books", "tail", 0, "2025-01-01T00:00:00.000+00:00", "1:handlers", "1:sequences", layout=RECORDED)


def rule(code: GroupCode = CODE, setting: str = "tail", **options: object) -> RecordRule:
    return RecordRule("books", setting, lambda: code, FakeClock().now, **options)  # type: ignore[arg-type]


def found(record: GroupRecord | None, *positions: int | None, waiting: bool = False) -> FoundGroup:
    partitions = layout(len(positions))
    known = {one: at for one, at in zip(partitions, positions, strict=True) if at is not None}
    return FoundGroup(record, known, partitions, lambda: waiting)


def error_of(error: ExplainedError) -> tuple[str, str, str]:
    return error.code, error.what, error.fix


def test_a_new_group_needs_its_initial_position_and_records_it() -> None:
    with pytest.raises(BeginningNeededError) as needed:
        rule(setting="-P7D").kept(found(None, None, None))
    assert needed.value.position is None
    kept = rule(setting="-P7D").kept(found(None, None, None), 12)
    assert kept.record == GroupRecord("books", "-P7D", 12, NOW, "1:handlers", "1:sequences", layout=RECORDED)
    assert kept.warnings == {}


def test_a_group_of_an_older_version_gets_a_record_without_warning() -> None:
    kept = rule().kept(found(None, 7, 9))
    assert kept.record == GroupRecord("books", "", None, NOW, "1:handlers", "1:sequences", layout=RECORDED)
    assert kept.warnings == {}


def test_a_known_group_with_the_same_code_is_left_unchanged() -> None:
    kept = rule().kept(found(RECORD, 7, 9))
    assert kept.record is not None
    assert (kept.record, kept.warnings) == (RECORD, {})


def test_a_group_of_a_version_without_layouts_gets_one_without_warning() -> None:
    kept = rule(partitions=2).kept(found(replace(RECORD, layout=None), 7, 9))
    assert kept.record == replace(RECORD, layout=RecordedLayout(layout(2), 2))
    assert kept.warnings == {}


@pytest.mark.parametrize("setting", ["tail", "-P7D"])
def test_a_later_change_of_the_initial_position_has_no_effect_and_causes_a_warning(setting: str) -> None:
    kept = rule(setting="head").kept(found(replace(RECORD, setting=setting, position=4), 7))
    assert kept.record == replace(RECORD, setting=setting, position=4)
    assert kept.warnings == {
        Warned.SETTING: "fetch.initial-position of group 'books' is head, but the group began at "
        f"{setting} (position 4): the setting has no effect"
    }


def test_an_unknown_initial_position_is_not_compared() -> None:
    assert rule(setting="head").kept(found(replace(RECORD, setting="", position=None), 7)).warnings == {}


LOST = "OCQ-317"
WAYS_OUT = (
    "restore the rows from a backup; or opencqrs groups reset books --to tail to handle all events again (--to head or "
    "--to-position N to continue elsewhere); or set progress.on-lost: initial to begin again at fetch.initial-position"
)


@pytest.mark.parametrize(
    ("positions", "which"),
    [
        ((None,), "all progress"),
        ((None, None), "all progress"),
        ((None, 4), "the progress of partition 0/2"),
        ((4, None, None), "the progress of partition 1/3, 2/3"),
    ],
)
def test_lost_progress_is_refused_with_possible_fixes(positions: tuple[int | None, ...], which: str) -> None:
    with pytest.raises(ProgressLostError) as refused:
        rule().kept(found(RECORD, *positions))
    assert error_of(refused.value) == (LOST, f"group 'books' has begun, but {which} is gone", WAYS_OUT)
    assert refused.value.where == "table opencqrs_progress"


def test_a_group_with_lost_progress_restarts_at_its_configured_position() -> None:
    lenient = rule(GroupCode("1:new", "1:new"), "head", on_lost=OnLost.INITIAL)
    lost = found(RECORD, None, None, waiting=True)
    with pytest.raises(BeginningNeededError) as needed:
        lenient.kept(lost)
    assert needed.value.position is None
    kept = lenient.kept(lost, 30)
    assert kept.record == GroupRecord("books", "head", 30, NOW, "1:new", "1:new", layout=RECORDED)
    assert kept.warnings == {Warned.LOST: "progress of group 'books' is gone: it begins again after position 30"}


@pytest.mark.parametrize("began", [3, None])
def test_partitions_with_lost_progress_restart_where_their_group_began(began: int | None) -> None:
    lenient, record = rule(setting="-P7D", on_lost=OnLost.INITIAL), replace(RECORD, setting="-P7D", position=began)
    with pytest.raises(BeginningNeededError) as needed:
        lenient.kept(found(record, 9, None))
    assert needed.value.position == began
    kept = lenient.kept(found(record, 9, None), 3)
    assert kept.record == record
    assert kept.warnings == {
        Warned.LOST: "progress of group 'books' partition 1/2 is gone: it begins again after position 3"
    }


NEW = GroupCode("1:others", "1:sequences")
CHANGED = (
    "handlers of group 'books' changed since position 9: the read model up to there was built by the others; "
    "opencqrs groups rebuild books builds it again beside that, opencqrs groups reset books --to tail handles all "
    "events again"
)


@pytest.mark.parametrize(
    ("on_changed", "warnings"), [(OnChangedHandlers.WARN, {Warned.HANDLERS: CHANGED}), (OnChangedHandlers.IGNORE, {})]
)
def test_changed_handlers_are_recorded_with_the_position_from_which_they_apply(
    on_changed: OnChangedHandlers, warnings: dict[Warned, str]
) -> None:
    kept = rule(NEW, on_changed=on_changed).kept(found(RECORD, 7, 9))
    assert kept.warnings == warnings
    assert kept.record == replace(RECORD, handlers="1:others", changes=(HandlersChange(9, NOW, "1:handlers"),))
    again = rule(NEW).kept(found(kept.record, 8, 11))
    assert (again.record, again.warnings) == (kept.record, {})


@pytest.mark.parametrize("on_changed", [OnChangedHandlers.WARN, OnChangedHandlers.IGNORE])
def test_changed_handlers_apply_from_where_processes_with_the_earlier_handlers_stopped(
    on_changed: OnChangedHandlers,
) -> None:
    first, second, third = layout(3)
    changed = rule(NEW, on_changed=on_changed).kept(replace(found(RECORD, 7, 9, 9), claimed=[first])).record
    assert changed.changes == (HandlersChange(9, NOW, "1:handlers", (second, third)),)
    own = rule(NEW, on_changed=on_changed).kept(replace(found(changed, 20, 9, 12), claimed=[first, second]))
    assert (own.record.changes, own.warnings) == ((HandlersChange(9, NOW, "1:handlers", (third,)),), {})
    after = rule(NEW, on_changed=on_changed).kept(replace(found(own.record, 20, 20, 12), claimed=[third]))
    assert after.record.changes == (HandlersChange(12, NOW, "1:handlers"),)
    warnings = {
        Warned.OTHERS: "processes with the earlier handlers of group 'books' kept running beside those with the "
        "changed ones, which apply since position 12, not 9: up to there the earlier ones handled some partitions; "
        "opencqrs groups rebuild books builds it again beside that, opencqrs groups reset books --to tail handles all "
        "events again"
    }
    assert after.warnings == (warnings if on_changed is OnChangedHandlers.WARN else {})
    again = rule(NEW).kept(found(after.record, 30, 30, 30))
    assert (again.record, again.warnings) == (after.record, {})


def test_a_partition_split_after_handlers_changed_counts_as_taken_over_with_its_first_half() -> None:
    changed = replace(
        RECORD, changes=(HandlersChange(9, NOW, "1:first", layout(2)),), layout=RecordedLayout(layout(4), 1)
    )
    kept = rule().kept(replace(found(changed, 9, 9, 12, 9), claimed=[layout(4)[2]]))
    assert kept.record.changes == (HandlersChange(12, NOW, "1:first", (layout(2)[1],)),)


def test_changed_handlers_may_be_refused_with_possible_fixes() -> None:
    with pytest.raises(HandlersChangedError) as refused:
        rule(NEW, on_changed=OnChangedHandlers.REFUSE).kept(found(RECORD, 9))
    assert error_of(refused.value) == (
        "OCQ-318",
        "handlers of group 'books' changed since position 9, up to which other handlers built its read model",
        "to continue with the new ones, start once with "
        "--set 'event-handling.groups[books].processing.on-changed-handlers=warn'; or opencqrs groups rebuild books to "
        "build the read model again while the old handlers run; or delete the read model and opencqrs groups reset "
        "books --to tail to handle all events again; or restore the earlier handlers",
    )


def test_messages_suggest_a_rebuild_only_to_groups_that_support_it() -> None:
    fixes = [
        *rule(NEW, can_rebuild=False).kept(found(RECORD, 7, 9)).warnings.values(),
        *rule(selection=BOOKS, can_rebuild=False).kept(found(selected(MISSPELT), 7, 9)).warnings.values(),
    ]
    for code in (NEW, OTHER):
        with pytest.raises(HandlersChangedError) as refused:
            rule(code, on_changed=OnChangedHandlers.REFUSE, can_rebuild=False).kept(found(RECORD, 7, 9))
        fixes.append(refused.value.fix)
    assert len(fixes) == 4
    assert all("opencqrs groups reset books --to tail" in each and "rebuild" not in each for each in fixes), fixes


@pytest.mark.parametrize("on_changed", list(OnChangedHandlers))
def test_handlers_may_change_without_warning_before_the_first_event(on_changed: OnChangedHandlers) -> None:
    kept = rule(NEW, on_changed=on_changed).kept(found(replace(RECORD, position=5), 5, 5))
    assert (kept.record, kept.warnings) == (replace(RECORD, position=5, handlers="1:others"), {})


@pytest.mark.parametrize("began", [0, 5, None])
def test_a_reset_to_the_beginning_clears_the_changes_of_handlers(began: int | None) -> None:
    record = replace(RECORD, position=began, changes=(HandlersChange(4, NOW, "1:first"),))
    kept = rule(GroupCode("1:others", "1:others"), on_changed=OnChangedHandlers.REFUSE).kept(found(record, 0, 0))
    assert kept.record == replace(record, handlers="1:others", sequencing="1:others", changes=())
    assert kept.warnings == {}


def test_changes_of_handlers_after_the_position_of_a_reset_are_dropped() -> None:
    changes = HandlersChange(4, NOW, "1:first"), HandlersChange(9, NOW, "1:second")
    kept = rule(NEW).kept(found(replace(RECORD, changes=changes), 6, 6))
    assert kept.record.changes == (changes[0], HandlersChange(6, NOW, "1:handlers"))


@pytest.mark.parametrize("before", ["", "0:handlers"])
def test_code_that_cannot_be_compared_is_recorded_without_warning(before: str) -> None:
    record = replace(RECORD, handlers=before, sequencing=before)
    assert rule(on_changed=OnChangedHandlers.REFUSE).kept(found(record, 7, 9)) == rule().kept(found(RECORD, 7, 9))


def test_code_that_cannot_be_read_leaves_the_record_unchanged() -> None:
    kept = rule(GroupCode(), on_changed=OnChangedHandlers.REFUSE).kept(found(RECORD, 7, 9, waiting=True))
    assert (kept.record, kept.warnings) == (RECORD, {})


def test_alternating_handlers_that_handle_nothing_leave_one_change() -> None:
    record = RECORD
    for number in range(30):
        code = GroupCode(f"1:{number % 2}", "1:sequences")
        record = rule(code).kept(found(record, 9)).record
    assert record.changes == (HandlersChange(9, NOW, "1:handlers"),)
    assert rule().kept(found(record, 9)).record == RECORD


def test_the_latest_changes_are_kept() -> None:
    record = RECORD
    for number in range(30):
        record = rule(GroupCode(f"1:{number}", "1:sequences")).kept(found(record, 9 + number)).record
    assert [change.position for change in record.changes] == list(range(29, 39))
    assert record.changed == HandlersChange(38, NOW, "1:28")


OTHER = GroupCode("1:handlers", "1:others")


@pytest.mark.parametrize(
    ("group", "why"),
    [
        (found(RECORD, 7, 9), "it has 2 partitions"),
        (found(RECORD, 9, 9), "it has 2 partitions"),
        (found(RECORD, 9, waiting=True), "events wait in its inbox"),
    ],
)
def test_changed_sequences_are_refused_with_the_fix(group: FoundGroup, why: str) -> None:
    with pytest.raises(HandlersChangedError) as refused:
        rule(OTHER, on_changed=OnChangedHandlers.IGNORE).kept(group)
    assert error_of(refused.value) == (
        "OCQ-319",
        f"group 'books' sequences its events differently than before, and {why}: order would be lost",
        "restore the settings sequence.* and the sequence resolver or batch key; or opencqrs groups rebuild books to "
        "build the read model again; or opencqrs groups reset books --to tail to handle all events again, where "
        "@on_reset empties the read model",
    )


def test_changed_sequences_are_refused_while_some_are_ahead() -> None:
    ahead = replace(found(replace(RECORD, sequencing="1:others"), 7), is_ahead=True)
    with pytest.raises(HandlersChangedError, match="and some sequences are ahead of others since a merge: order would"):
        rule().kept(ahead)


def test_changed_sequences_of_a_single_partition_are_accepted_while_no_event_waits() -> None:
    kept = rule(OTHER).kept(found(RECORD, 9))
    assert (kept.record, kept.warnings) == (replace(RECORD, sequencing="1:others"), {})


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [("1:a", "1:a", True), ("", "1:a", True), ("1:a", "", True), ("1:a", "0:b", True), ("1:a", "1:b", False)],
)
def test_only_fingerprints_of_the_same_version_are_compared(one: str, other: str, *, same: bool) -> None:
    assert same_code(one, other) is same


# The selection of events


def selecting(subject: str, form: str = "plain") -> tuple[tuple[str, str], ...]:
    return (("fetch.subject", subject), ("fetch.recursive", "true"), ("events.format", form))


BOOKS, MISSPELT, ENVELOPED = selecting("/books"), selecting("/bokks"), selecting("/books", "envelope")


def selected(settings: tuple[tuple[str, str], ...], *change: object) -> GroupRecord:
    return replace(RECORD, selection=RecordedSelection(settings, *change))  # type: ignore[arg-type]


@pytest.mark.parametrize("record", [RECORD, selected(BOOKS)], ids=["not recorded", "the same"])
def test_a_new_or_unchanged_selection_is_recorded_without_warning(record: GroupRecord) -> None:
    kept = rule(selection=BOOKS).kept(found(record, 7, 9))
    assert (kept.record, kept.warnings) == (selected(BOOKS), {})
    assert rule(selection=BOOKS).kept(found(None, None), 0).record.selection == RecordedSelection(BOOKS)


@pytest.mark.parametrize(
    ("before", "now", "changed"),
    [
        (MISSPELT, BOOKS, "fetch.subject was /bokks and is /books"),
        (BOOKS, ENVELOPED, "events.format was plain and is envelope"),
        (MISSPELT, ENVELOPED, "fetch.subject was /bokks and is /books, events.format was plain and is envelope"),
    ],
)
def test_a_changed_selection_causes_one_warning_with_the_position(before: object, now: object, changed: str) -> None:
    kept = rule(selection=now).kept(found(selected(before), 7, 9))  # type: ignore[arg-type]
    assert kept.record == selected(now, 9, before)  # type: ignore[arg-type]
    assert kept.warnings == {
        Warned.SELECTION: f"group 'books' selects other events since position 9: {changed}. Events up to there are not "
        "read again: opencqrs groups rebuild books builds its read model again from all, opencqrs groups reset books "
        "--to tail handles all events again"
    }
    assert rule(selection=now).kept(found(kept.record, 7, 11)).warnings == {}


TYPED, MORE = ((*BOOKS, ("events.types", text)) for text in ("{}", "{lent: Lent}"))


def test_a_newly_mapped_type_causes_a_warning() -> None:
    kept = rule(selection=MORE).kept(found(selected(TYPED), 7, 9))
    assert (
        "since position 9: events.types was {} and is {lent: Lent}. Events up to there"
        in kept.warnings[Warned.SELECTION]
    )


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (selected(BOOKS), selected(MORE)),
        (selected(BOOKS, 4, MISSPELT), selected(MORE, 4, (*MISSPELT, MORE[-1]))),
        (selected(BOOKS, 9, MISSPELT), selected(MORE, 9, (*MISSPELT, MORE[-1]))),
    ],
    ids=["never changed", "changed before", "changed here"],
)
def test_a_setting_not_recorded_by_an_earlier_version_counts_as_unchanged(
    before: GroupRecord, now: GroupRecord
) -> None:
    kept = rule(selection=MORE).kept(found(before, 7, 9))
    assert kept.record == now
    assert "events.types" not in kept.warnings.get(Warned.SELECTION, "")
    taken_back = (*MISSPELT, MORE[-1])
    again = rule(selection=taken_back).kept(found(before, 7, 9)).warnings.get(Warned.SELECTION, "")
    assert "events.types" not in again


@pytest.mark.parametrize("position", [9, 11])
@pytest.mark.parametrize("settings", [BOOKS, TYPED], ids=["by the earlier version", "by a later one after that"])
def test_a_setting_that_an_earlier_version_has_left_out_is_no_change(
    settings: tuple[tuple[str, str], ...], position: int
) -> None:
    kept = rule(selection=TYPED).kept(found(selected(settings, 9, TYPED), position))
    assert (kept.record, kept.warnings) == (selected(TYPED), {})
    assert RecordedSelection(settings, 9, TYPED).differences == []


@pytest.mark.parametrize(
    ("record", "position", "kept"),
    [
        (selected(MISSPELT), 0, selected(BOOKS)),
        (selected(MISSPELT, 9, BOOKS), 9, selected(BOOKS)),
        (selected(BOOKS, 9, MISSPELT), 4, selected(BOOKS)),
    ],
    ids=["nothing handled", "taken back at once", "reset to before"],
)
def test_a_selection_that_has_excluded_no_events_leaves_no_trace(
    record: GroupRecord, position: int, kept: GroupRecord
) -> None:
    found_now = rule(selection=BOOKS).kept(found(record, position))
    assert (found_now.record, found_now.warnings) == (kept, {})


def test_without_a_selection_nothing_is_compared() -> None:
    assert rule().kept(found(selected(BOOKS), 7)).record == selected(BOOKS)
