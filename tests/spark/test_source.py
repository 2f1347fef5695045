"""``format("opencqrs")``, on a real Spark."""

from __future__ import annotations

import pytest

from opencqrs_py import register_data_source
from opencqrs_py.adapters.sql import Database, SqlEventStore
from opencqrs_py.model.event import Event

pytestmark = pytest.mark.spark

COUNT = 45_000  # more than one range


@pytest.fixture(scope="module")
def url(tmp_path_factory, spark):
    register_data_source(spark)
    address = f"sqlite:///{tmp_path_factory.mktemp('log')}/events.db"
    SqlEventStore(Database(address)).append(made_up(n) for n in range(1, COUNT + 1))
    return address


def made_up(number: int) -> Event:
    subject, kind = f"/x/{number % 3}", "odd" if number % 2 else "even"
    return Event(
        0, str(number), "urn:s", subject, kind, "2026-01-01T00:00:00Z", "application/json", f"[{number}]", None
    )


def load(spark, url, **options):
    return spark.read.format("opencqrs").option("url", url).options(**options).load()


def test_every_event_is_read_once_with_all_its_columns(spark, url):
    frame = load(spark, url)
    assert frame.count() == COUNT
    assert frame.agg({"position": "sum"}).collect()[0][0] == COUNT * (COUNT + 1) // 2
    (row,) = frame.where("position = 7").collect()
    assert tuple(row) == (7, "7", "urn:s", "/x/1", "odd", "2026-01-01T00:00:00Z", "application/json", "[7]", None)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("type = 'odd'", COUNT // 2),
        ("type in ('odd', 'none')", COUNT // 2),
        ("type = 'odd' and position <= 100", 50),
        ("position > 44990 and position < 44995", 4),
        ("position >= 10 and position <= 11", 2),
        ("subject = '/x/0' and position <= 9", 3),
        ("type = 'none'", 0),
    ],
)
def test_conditions_give_what_spark_alone_would_give(spark, url, condition, expected):
    assert load(spark, url).where(condition).count() == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"from": "44999"}, 2),
        ({"to": "5"}, 5),
        ({"from": "3", "to": "5"}, 3),
        ({"types": "odd, none", "to": "10"}, 5),
        ({"subject": "/x/1", "to": "9"}, 3),
        ({"subject": "/x", "recursive": "false"}, 0),
    ],
)
def test_options_narrow_what_is_read(spark, url, options, expected):
    assert load(spark, url, **options).count() == expected


def test_a_condition_on_the_type_is_not_left_to_spark(spark, url):
    plan = load(spark, url).where("type = 'odd'")._jdf.queryExecution().executedPlan().toString()
    assert "BatchScan opencqrs" in plan
    assert "= odd" not in plan


def test_a_stream_follows_the_log_from_where_it_was(spark, tmp_path):
    register_data_source(spark)
    address = f"sqlite:///{tmp_path}/events.db"
    store = SqlEventStore(Database(address))

    def run() -> list[int]:
        stream = spark.readStream.format("opencqrs").option("url", address).load().writeStream
        places = stream.format("parquet").option("path", f"{tmp_path}/out")
        query = places.option("checkpointLocation", f"{tmp_path}/checkpoint").trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        return sorted(row.position for row in spark.read.parquet(f"{tmp_path}/out").select("position").collect())

    store.append(made_up(n) for n in range(1, 6))
    assert run() == [1, 2, 3, 4, 5]
    store.append(made_up(n) for n in range(6, 9))
    assert run() == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("options", "says"),
    [({}, "the option 'url' is missing"), ({"url": "sqlite:///x", "from": "one"}, "'from' is a position")],
)
def test_a_wrong_option_is_named(spark, options, says):
    register_data_source(spark)
    with pytest.raises(Exception, match=says):
        spark.read.format("opencqrs").options(**options).load()
