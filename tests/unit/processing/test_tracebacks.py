"""Tracebacks show the frames of a handler's author, and none of this package's."""

from __future__ import annotations

import pytest

from opencqrs_py.errors import EventStoreError
from opencqrs_py.model import Cursor, Partition
from opencqrs_py.processing import exceptions
from opencqrs_py.processing.dispatch import ChunkFailedError
from opencqrs_py.processing.exceptions import own_frames


def failure_in_a_handler() -> Exception:
    def look_up() -> None:
        raise KeyError("isbn")

    try:
        look_up()
    except KeyError as error:
        return error


def failure_in_the_package_called_from_here() -> Exception:
    try:
        Cursor(Partition(1, 0), 1, 5, 5).check_forward(4)
    except ValueError as error:
        return error
    pytest.fail("it went back")


def test_the_authors_own_frames_are_kept() -> None:
    shown = own_frames(failure_in_a_handler())
    assert shown.startswith("Traceback (most recent call last):")
    assert "in look_up" in shown
    assert shown.endswith("KeyError: 'isbn'")


def test_frames_of_the_package_are_left_out() -> None:
    shown = own_frames(failure_in_the_package_called_from_here())
    assert __file__ in shown
    assert "progress.py" not in shown


def test_nothing_is_left_of_an_error_of_the_package_itself() -> None:
    error = failure_in_the_package_called_from_here()
    assert error.__traceback__ is not None
    error.__traceback__ = error.__traceback__.tb_next
    assert own_frames(error) == ""


def test_an_error_that_was_never_raised_has_no_frames() -> None:
    assert own_frames(ValueError("made, not raised")) == ""


def explained(cause: Exception) -> EventStoreError:
    """Return what a store raises, as if all its frames were the package's."""
    error = EventStoreError("OCQ-332", "the token is wrong")
    error.__cause__ = cause
    return error


def test_what_caused_an_event_store_s_error_is_a_library_s_business() -> None:
    assert own_frames(explained(failure_in_a_handler())) == ""


def test_an_event_store_s_error_in_a_handler_is_shown_with_the_handler() -> None:
    try:
        raise explained(failure_in_a_handler())
    except EventStoreError as error:
        shown = own_frames(error)
    assert shown.count("Traceback (most recent call last):") == 2
    assert "test_an_event_store_s_error_in_a_handler" in shown


def test_causes_are_shown_with_their_frames() -> None:
    try:
        try:
            raise failure_in_a_handler()
        except KeyError as error:
            raise RuntimeError("no such book") from error
    except RuntimeError as error:
        shown = own_frames(error)
    assert shown.index("KeyError: 'isbn'") < shown.index("RuntimeError: no such book")
    assert "in look_up" in shown


def test_how_a_chunk_failed_before_it_was_tried_in_parts_is_left_out() -> None:
    error = failure_in_a_handler()
    error.__context__ = ChunkFailedError(None, ValueError("earlier"))
    error.__context__.__cause__ = ValueError("earlier")
    shown = own_frames(error)
    assert shown.endswith("KeyError: 'isbn'")
    assert "earlier" not in shown


def test_a_folder_whose_name_only_begins_like_the_packages_is_the_authors(monkeypatch: pytest.MonkeyPatch) -> None:
    package = exceptions._PACKAGE
    code = compile("raise ValueError('mine')", f"{package.rstrip('/')}_of_mine/handlers.py", "exec")
    try:
        exec(code, {})
    except ValueError as error:
        shown = own_frames(error)
    assert "_of_mine" in shown
