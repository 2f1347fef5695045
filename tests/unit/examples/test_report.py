"""The report of the git history example: its pure functions."""

import pytest
from chart import bar_chart
from report import activity_chart, shown


@pytest.mark.parametrize(
    ("path", "printed"),
    [
        ("src/a.py", "src/a.py"),
        ("a%1B[31mred", r"a\x1b[31mred"),
        ("caf%E9", r"caf\xe9"),
        ("100%25", "100%"),
        ("gpj.\u202eexe", r"gpj.\u202eexe"),
        ("größe/書籍", "größe/書籍"),
        ("[bold]x[/bold]", "[bold]x[/bold]"),
    ],
)
def test_a_path_is_printed_without_control_characters(path: str, printed: str) -> None:
    assert shown(path, 80).plain == printed


@pytest.mark.parametrize(
    ("path", "width", "printed"),
    [("src/core/io/file.py", 10, "…o/file.py"), ("書籍書籍", 5, "…書籍"), ("abc", 3, "abc"), ("abcd", 3, "…cd")],
)
def test_a_long_path_is_cut_at_its_start(path: str, width: int, printed: str) -> None:
    assert shown(path, width).plain == printed


@pytest.mark.parametrize(
    ("values", "rows"),
    [
        ([8, 4, 0], ["█  ", "██ "]),
        ([1000, 1], ["█ ", "█▁"]),
        ([0, 0], ["  ", "  "]),
        ([], ["", ""]),
    ],
)
def test_the_height_of_bars_follows_their_values(values: list[int], rows: list[str]) -> None:
    assert bar_chart(values, 2) == rows


def test_bars_can_be_drawn_in_ascii() -> None:
    assert bar_chart([8, 4, 0], 2, ascii_only=True) == ["#  ", "## "]


def test_weeks_without_commits_leave_a_gap() -> None:
    chart = activity_chart([("2020-W52", 2, 1, 1), ("2021-W01", 4, 1, 1)], ascii_only=True).plain

    assert chart.splitlines()[-2:] == ["0 # #", "  2020-W52 to 2021-W01"]
    assert chart.splitlines()[0] == "4   #"


def test_the_chart_shows_the_newest_sixty_weeks() -> None:
    rows = [(f"{year}-W{week:02}", 1, 1, 1) for year in (2018, 2019) for week in range(1, 53)]

    assert activity_chart(rows, ascii_only=True).plain.splitlines()[-2:] == [
        "0 " + 60 * "#",
        "  2018-W45 to 2019-W52",
    ]
