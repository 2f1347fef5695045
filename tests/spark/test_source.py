"""``format("opencqrs")``, on a real Spark."""

from __future__ import annotations

import json
import random
import re
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache, reduce
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from sqlalchemy import make_url, text

from opencqrs_py import register_data_source
from opencqrs_py.adapters.eventsourcingdb import EventSourcingDbEventStore
from opencqrs_py.adapters.sql import Database, SqlEventStore
from opencqrs_py.assembly.spark_source import EventStoreSource
from opencqrs_py.model.cloudevents import write_event
from opencqrs_py.model.event import Event
from opencqrs_py.model.selection import Slice
from opencqrs_py.testing.eventsourcingdb import EventSourcingDbStandIn

pytestmark = pytest.mark.spark

COUNT = 45_000  # more than one range
DDL = (
    "position long, id string, source string, subject string, type string, time string, content_type string, "
    "payload string, extensions string"
)


OTHERS = [
    pytest.param("postgresql", marks=pytest.mark.postgresql),
    pytest.param("mariadb", marks=pytest.mark.mariadb),
]
ON_ALL = pytest.mark.parametrize("kind", ["sqlite", *OTHERS])
ON_ONE = pytest.mark.release(kind=("sqlite", "mariadb"))  # where the databases differ in nothing that is shown
BY_READERS = pytest.mark.release  # as the unit tests of the readers, which need no Spark


@pytest.fixture(scope="module")
def long_log(fresh_url, spark):
    """Returns the URL of a log of 45,000 events on a kind of database."""
    register_data_source(spark)
    return cache(lambda kind: filled(fresh_url(kind), (made_up(n) for n in range(1, COUNT + 1))))


@pytest.fixture
def url(long_log, kind):
    return long_log(kind)


@pytest.fixture
def pushing(spark):
    """Let the store check filters, for one test."""
    register_data_source(spark, push_filters=True)
    yield
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    register_data_source(spark)


def filled(address, events):
    database = Database(address)
    SqlEventStore(database).append(events)
    database.close()
    return address


def made_up(number, subject=None, kind=None):
    subject, kind = subject or f"/x/{number % 3}", kind or ("odd" if number % 2 else "even")
    day = f"2026-01-{number % 28 + 1:02}T00:00:00Z"
    return Event(0, str(number), "urn:s", subject, kind, day, "application/json", f"[{number}]", None)


def load(spark, url, **options):
    return spark.read.format("opencqrs").option("url", url).options(**options).load()


# --------------------------------------------------------------------------------------------------------- batches


SHOWN = [
    *["position", "id", "source", "subject", "type", "unix_seconds(time)"],
    *["content_type", "to_json(payload)", "extensions"],
]


@pytest.mark.release(kind=("sqlite", "postgresql"))  # of which a table is read in several tasks below
@ON_ALL
def test_every_event_is_read_once_with_all_its_columns(spark, url):
    frame = load(spark, url)
    assert frame.count() == COUNT
    assert frame.agg({"position": "sum"}).collect()[0][0] == COUNT * (COUNT + 1) // 2
    (row,) = frame.where("position = 7").selectExpr(*SHOWN).collect()
    assert tuple(row) == (7, "7", "urn:s", "/x/1", "odd", 1_767_830_400, "application/json", "[7]", None)


@pytest.mark.release(kind=("postgresql", "mariadb"))  # which a store reads as it does elsewhere
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"from": "44999"}, 2),
        ({"from": "3", "to": "5"}, 3),
        ({"from": "3", "to": "2026-01-07T00:00:00Z"}, 3),
        ({"types": "odd, none", "to": "10"}, 5),
        ({"subject": "/x/1", "to": "9"}, 3),
        ({"subject": "/x", "recursive": "false"}, 0),
        ({"from": "99999"}, 0),
    ],
)
@ON_ALL
def test_options_narrow_what_is_read(spark, url, options, expected):
    assert load(spark, url, **options).count() == expected


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ("payload STRING, position BIGINT", ("[7]", 7)),
        ("type STRING, time STRING, extensions STRING", ("odd", "2026-01-08T00:00:00Z", None)),
        ("time TIMESTAMP", (datetime(2026, 1, 8, tzinfo=UTC),)),
    ],
)
def test_a_schema_limits_the_columns_read(spark, url, columns, found):
    reader = spark.read.format("opencqrs").options(url=url, **{"from": "7", "to": "7"})
    (row,) = reader.schema(columns).load().collect()
    assert tuple(value.astimezone(UTC) if isinstance(value, datetime) else value for value in row) == found


SALE = '{"buyer":{"name":"ada"},"amount":12345678901234567890.12,"items":["a",1.50],"at":"2026-01-05T01:00:00+01:00"}'
FIELDS = "amount DECIMAL(30,2), buyer STRUCT<name: STRING>, items VARIANT, at TIMESTAMP"


@pytest.fixture
def sales(fresh_url, kind):
    extended = made_up(1)._replace(payload=SALE, extensions='{"trace":"x","n":7}')
    return filled(fresh_url(kind), [extended, made_up(2)._replace(payload=None)])


@ON_ONE
@ON_ALL
def test_fields_of_the_data_become_columns_of_their_types(spark, log, sales):
    frame = load(spark, sales, schema=FIELDS)
    shown = frame.selectExpr("amount", "buyer.name", "to_json(items)", "unix_seconds(at)", "extensions.n", "position")
    assert [tuple(row) for row in shown.orderBy("position").collect()] == [
        (Decimal("12345678901234567890.12"), "ada", '["a",1.5]', 1_767_571_200, "7", 1),
        (None, None, None, None, None, 2),
    ]


def test_fields_of_an_event_class_become_columns(spark, url):
    """The class is any that workers can import."""
    frame = load(spark, url, schema="opencqrs_py.model.partition:Partition", types="none")
    assert frame.schema.names[-2:] == ["modulus", "residue"]
    assert frame.count() == 0


def test_a_payload_becomes_a_variant_without_losing_digits(spark, log, sales):
    shown = load(spark, sales).selectExpr("payload:amount::decimal(38,2)", "payload:buyer.name::string", "position")
    assert [tuple(row) for row in shown.orderBy("position").collect()] == [
        (Decimal("12345678901234567890.12"), "ada", 1),
        (None, None, 2),
    ]


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "query-with-spark.md"


@pytest.mark.release  # as its steps, elsewhere
def test_files_that_the_how_to_writes_can_be_imported_after_its_stream(spark, log, tmp_path, zygote):
    log.grow(3)
    names = {"spark": spark}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        if "lake/" in block:
            code = block.replace("lake/", f"{tmp_path}/lake/").replace("sqlite:///events.db", log.url)
            code = code.replace("stream.trigger", "start = lambda: stream.trigger").replace(".awaitTermination()", "")
            exec(code, names)
    run_to_its_end(names["start"])
    imported = zygote.opencqrs(tmp_path, ["events", "import", "lake/events"], {})
    assert (imported.code, imported.out) == (0, "imported 3 events\n"), imported.err


@pytest.mark.release  # as batches
def test_a_stream_has_the_columns_of_its_schema(spark, log, sales, tmp_path):
    stream = spark.readStream.format("opencqrs").options(url=sales, schema=FIELDS).load()
    query = stream.writeStream.format("parquet").option("checkpointLocation", f"{tmp_path}/checkpoint")
    run_to_its_end(lambda: query.trigger(availableNow=True).start(f"{tmp_path}/lake"))
    assert spark.read.parquet(f"{tmp_path}/lake").schema.names == stream.schema.names
    assert spark.read.parquet(f"{tmp_path}/lake").where("buyer.name = 'ada'").count() == 1


def test_data_that_do_not_match_the_schema_end_the_query_and_name_the_event(spark, log, sales):
    with pytest.raises(PythonException) as caught:
        load(spark, sales, schema="amount BIGINT").collect()
    found = "".join(lines(caught)[:2])
    assert "[OCQ-419] the data of the event at position 1 do not fit the option 'schema': amount is 1234567" in found
    assert "Traceback" not in str(caught.value)


@pytest.mark.release  # as the unit tests of ranges
def test_ranges_have_equal_sizes_although_positions_have_a_gap(spark, log):
    log.grow(COUNT)
    with log.database.writing() as connection:
        connection.execute(
            text("UPDATE opencqrs_events SET position = position + 1000000000000 WHERE position > 22500")
        )
    frame = load(spark, log.url, ranges="2").selectExpr("spark_partition_id() AS task").groupBy("task").count()
    assert sorted(row["count"] for row in frame.collect()) == [22_500, 22_500]


@pytest.mark.parametrize(("options", "tasks"), [({}, 3), ({"ranges": "2"}, 2), ({"to": "9"}, 1)])
def test_a_long_log_is_read_by_several_tasks(spark, url, options, tasks):
    assert load(spark, url, **options).rdd.getNumPartitions() == tasks


def test_the_log_can_be_queried_as_a_sql_table(spark, url):
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW log USING opencqrs OPTIONS (url '{url}', types 'odd')")
    assert spark.sql("SELECT count(*) FROM log WHERE position <= 10").collect()[0][0] == 5


def test_queries_of_one_data_frame_do_not_affect_each_other(spark, url):
    frame = load(spark, url, to="1000")
    odd, even = frame.where("type = 'odd'"), frame.where("type = 'even' and position <= 100")
    assert (odd.count(), even.count(), frame.count()) == (500, 50, 1000)
    assert odd.unionAll(even).count() == 550
    assert odd.alias("a").join(even.alias("b"), sf.expr("a.position = b.position + 1")).count() == 50


def test_a_data_frame_shows_the_log_as_it_was_when_it_was_first_used(spark, log):
    log.grow(5)
    frame = load(spark, log.url)
    assert frame.count() == 5
    log.grow(2)
    assert (frame.count(), load(spark, log.url).count()) == (5, 7)


@pytest.mark.release  # files that are replaced are read, too
def test_files_can_be_read_as_a_log(spark, log, tmp_path):
    for part in range(3):
        lines = (json.dumps(write_event(made_up(n))) for n in range(1 + 10 * part, 11 + 10 * part))
        (tmp_path / f"{part}.ndjson").write_text("".join(f"{line}\n" for line in lines))
    log.url = tmp_path.as_uri()
    assert load(spark, log.url, types="odd").where("position > 20").count() == 5
    log.follow(maxEventsPerTrigger="20")
    assert [len(batch) for batch in log.batches()] == [20, 10]


@pytest.mark.release  # as tables and files
def test_eventsourcingdb_can_be_read_as_a_log(spark, log):
    with EventSourcingDbStandIn(api_token="", names=False) as server:
        store = EventSourcingDbEventStore(server.url, "", source="urn:s")
        store.append(made_up(n, kind=f"kind.of-{n % 2}")._replace(payload="{}") for n in range(1, 31))
        log.url = server.url
        assert load(spark, log.url, subject="/x/1").where("type = 'kind.of-1'").count() == 5
        log.follow(maxEventsPerTrigger="20")
        store.close()
    assert [len(batch) for batch in log.batches()] == [20, 10]


# --------------------------------------------------------------------------------------------------------- filters

SUBJECTS = ["/", "/a", "/a/b", "/a/b/c", "/ab", "/a/", "/a//b", "b", "/A", "/b", "/ä/😀", "/%", "/a_b", "/it's"]
TYPES = ["odd", "even", "Odd", "odd.v1", "it's"]
OPTIONS = [{}, {}, {"subject": "/a"}, {"types": "odd,even"}, {"from": "100", "to": "300"}]
QUERIES = 40
FEW_QUERIES = 8  # without --all


def random_log(draw):
    return [made_up(n, draw.choice(SUBJECTS), draw.choice(TYPES)) for n in range(1, 401)]


def quoted(text):
    return "'" + text.replace("'", "\\'") + "'"


def random_condition(draw):
    subject, kind, place = quoted(draw.choice(SUBJECTS)), quoted(draw.choice(TYPES)), draw.randrange(-1, 410)
    return draw.choice(
        [
            f"subject = {subject}",
            f"subject <=> {subject}",
            f"startswith(subject, {subject})",
            f"subject like {subject[:-1]}/%'",
            f"type = {kind}",
            f"type in ({kind}, 'even', null)",
            f"not type = {kind}",
            f"startswith(type, {kind})",
            f"position {draw.choice(['=', '<', '<=', '>', '>=', '<>'])} {place}",
            f"position in ({place}, {place // 2})",
            f"position between {place // 2} and {place}",
            f"time >= '2026-01-{draw.randrange(1, 29):02}'",
            f"id = '{place}'",
        ]
    )


def random_query(draw):
    joined = random_condition(draw)
    for _ in range(draw.randrange(3)):
        joined += f" {draw.choice(['and', 'and', 'and', 'or'])} {random_condition(draw)}"
    return joined


class Asked(NamedTuple):
    """A log, and queries of it with the positions that Spark alone finds."""

    log: list
    queries: list
    found: list


@pytest.fixture(scope="module")
def asked(spark, request):
    draw = random.Random(4711)
    log = random_log(draw)
    rows = [event._replace(position=place) for place, event in enumerate(log, 1)]
    alone = spark.createDataFrame([tuple(row) for row in rows], DDL).withColumn("time", sf.to_timestamp("time"))
    alone = alone.coalesce(1).cache()
    queries = [
        (draw.choice(OPTIONS), random_query(draw))
        for _ in range(QUERIES if request.config.getoption("--all") else FEW_QUERIES)
    ]
    known = answers(alone.where(query) for _, query in queries)
    alone.unpersist()
    found = [known_positions(known[number], rows, options) for number, (options, _) in enumerate(queries)]
    return Asked(log, queries, found)


@ON_ONE
@ON_ALL
def test_filters_pushed_to_the_store_find_what_spark_alone_finds(spark, pushing, fresh_url, kind, asked):
    address = filled(fresh_url(kind), asked.log)
    both = answers(load(spark, address, **options).where(query) for options, query in asked.queries)
    for number, (query, found) in enumerate(zip(asked.queries, asked.found, strict=True)):
        assert both[number] == found, query


def answers(frames):
    """Return the positions that each frame holds, all read in one job."""
    numbered = [frame.select(sf.lit(number).alias("number"), "position") for number, frame in enumerate(frames)]
    found = {number: [] for number in range(len(numbered))}
    for number, position in reduce(DataFrame.unionAll, numbered).collect():
        found[number].append(position)
    return {number: sorted(positions) for number, positions in found.items()}


def known_positions(known, rows, options):
    return [position for position in known if wanted(options, rows[position - 1])]


def wanted(options, row):
    types = options.get("types")
    return (
        ("subject" not in options or row.subject == "/a" or row.subject.startswith("/a/"))
        and (types is None or row.type in types.split(","))
        and int(options.get("from", 1)) <= row.position <= int(options.get("to", 400))
    )


def counting_source(file):
    """Return a data source that writes down how many events its store gives; local, so that Spark sends it along."""

    class Counting:
        def __init__(self, store):
            self.head = store.head
            self.position_before = store.position_before
            self.is_outage = store.is_outage
            self.store = store

        def read(self, after, limit, selection, upto=None):
            part = self.store.read(after, limit, selection, upto)
            with Path(file).open("a") as counts:
                counts.write(f"{len(part.events)}\n")
            return part

    class CountingSource(EventStoreSource):
        push_filters = True

        @classmethod
        def name(cls):
            return "counting"

        @staticmethod
        def open_source(url, mapping=None):
            return Counting(EventStoreSource.open_source(url, mapping))

    return CountingSource


@pytest.mark.few  # the others are pushed in unit tests
@pytest.mark.parametrize(
    ("condition", "read", "left"),
    [
        ("type = 'odd' and position <= 100", 50, 50),
        ("type in ('odd', 'none') and position <= 100", 50, 50),
        ("position > 44990 and position < 44995", 4, 4),
        ("position >= 10 and position <= 11", 2, 2),
        ("position between 10 and 11", 2, 2),
        ("position in (10, 20)", 11, 2),
        ("subject = '/x/0' and position <= 9", 3, 3),
        ("subject like '/x/%' and position <= 9", 9, 9),
        ("subject like '/y/%'", 0, 0),
        ("type = 'odd' and type = 'even'", 0, 0),
        ("id = '7' and position <= 9", 9, 1),
        ("time < '2026-01-03' and position <= 9", 9, 1),
    ],
)
def test_the_store_returns_no_event_beyond_the_range_or_excluded_by_a_pushed_filter(
    spark, url, pushing, tmp_path, condition, read, left
):
    counts = tmp_path / "counts"
    counts.write_text("")
    spark.dataSource.register(counting_source(str(counts)))
    frame = spark.read.format("counting").option("url", url).load().where(condition)
    assert frame.count() == left
    assert sum(map(int, counts.read_text().split())) == read


def test_spark_still_mixes_the_filters_of_one_data_frame_up(spark, url, pushing):
    """The reason why filters are pushed only on request. When this fails, Spark is fixed: push them always."""
    frame = load(spark, url, to="1000")
    assert frame.where("type = 'odd'").count() == 500
    assert frame.count() == 500


def test_a_condition_on_the_type_is_evaluated_by_the_store(spark, url, pushing):
    plan = load(spark, url).where("type = 'odd'")._jdf.queryExecution().executedPlan().toString()
    assert "BatchScan opencqrs" in plan
    assert "= odd" not in plan


# --------------------------------------------------------------------------------------------------------- streams


@pytest.fixture
def log(tmp_path, spark, fresh_url, kind):
    register_data_source(spark)
    counter = count(1)
    log = Log(
        spark, tmp_path, lambda: f"sqlite:///{tmp_path}/{next(counter)}.db" if kind == "sqlite" else fresh_url(kind)
    )
    yield log
    log.database.close()


def run_to_its_end(start):
    """Run a query until it ends; again, if Spark did not wait for its worker: ten seconds, whatever is set."""
    while True:
        try:
            assert start().awaitTermination(600) is not False
        except StreamingQueryException as error:
            if "Python worker failed to connect back" not in str(error):
                raise
        else:
            return


class Log:
    """A separate log, and a query that follows it with a checkpoint and writes each micro-batch to a folder."""

    def __init__(self, spark, folder, fresh):
        self.spark = spark
        self.folder = folder
        self.fresh = fresh
        self.open()

    def open(self, source="urn:s"):
        self.url = self.fresh()
        self.database = Database(self.url)
        self.store = SqlEventStore(self.database)
        self.source = source
        self.count = 0

    def replace(self, source):
        self.database.close()
        self.open(source)

    def grow(self, number):
        numbers = range(self.count + 1, self.count + number + 1)
        self.store.append(made_up(n)._replace(source=self.source) for n in numbers)
        self.count += number

    def follow(self, take=lambda number, seen: None, **options):
        def write(frame, number):
            seen = sorted(row.position for row in frame.select("position").collect())
            take(number, seen)
            (self.folder / f"batch-{number}.json").write_text(json.dumps(seen))

        stream = self.spark.readStream.format("opencqrs").option("url", self.url).options(**options).load()
        places = stream.writeStream.option("checkpointLocation", f"{self.folder}/checkpoint")
        run_to_its_end(places.foreachBatch(write).trigger(availableNow=True).start)

    def batches(self):
        files = sorted(self.folder.glob("batch-*.json"), key=lambda file: int(file.stem.partition("-")[2]))
        return [json.loads(file.read_text()) for file in files]

    def offsets(self):
        files = sorted((self.folder / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
        return [file.read_text().splitlines()[-1] for file in files]


@pytest.mark.release  # a failed query, below, follows its log, too
@ON_ALL
def test_a_stream_follows_the_log_from_its_position(log):
    log.grow(5)
    log.follow()
    log.grow(3)
    log.follow()
    log.follow()
    assert log.batches() == [[1, 2, 3, 4, 5], [6, 7, 8]]
    assert [json.loads(offset)["position"] for offset in log.offsets()] == [5, 8]


@BY_READERS
@ON_ALL
def test_a_limit_splits_available_events_into_micro_batches(log):
    log.grow(10)
    log.follow(types="odd", maxEventsPerTrigger="2")
    assert [batch for batch in log.batches() if batch] == [[1, 3], [5, 7], [9]]


@BY_READERS
def test_an_available_now_query_ends_at_the_head_of_its_start(log):
    log.grow(4)
    log.follow(lambda _number, _seen: log.grow(1), maxEventsPerTrigger="2")
    assert log.batches() == [[1, 2], [3, 4]]
    log.follow()
    assert log.batches() == [[1, 2], [3, 4], [5, 6]]


def test_a_failed_query_continues_from_its_checkpoint_without_loss_or_repetition(log):
    def fail(number, _seen):
        if number == 1:
            raise ValueError("the disk is full")

    log.grow(6)
    with pytest.raises(StreamingQueryException, match="the disk is full"):
        log.follow(fail, maxEventsPerTrigger="2")
    log.grow(1)
    log.follow(maxEventsPerTrigger="3")
    assert log.batches() == [[1, 2], [3, 4], [5, 6, 7]]


@BY_READERS
@ON_ALL
def test_a_stream_has_bounds_like_a_batch_query(log):
    log.grow(30)
    log.follow(**{"from": "2026-01-05T00:00:00Z", "to": "6"})
    assert log.batches() == [[4, 5, 6]]


@BY_READERS
@ON_ALL
def test_a_checkpoint_of_another_log_is_refused(log):
    log.grow(5)
    log.follow(maxEventsPerTrigger="3")
    for number, found in ((2, "there is none: the log ends at position 2"), (6, "the log has event 5 of urn:other")):
        log.replace("urn:other")
        log.grow(number)
        with pytest.raises(StreamingQueryException, match=rf"OCQ-411.* at position 5, but {found}"):
            log.follow()
    assert log.batches() == [[1, 2, 3], [4, 5]]


@BY_READERS
def test_a_checkpoint_of_an_older_version_is_continued(log):
    log.grow(5)
    log.follow()
    (offset,) = (log.folder / "checkpoint" / "offsets").glob("[0-9]*")
    *before, _ = offset.read_text().splitlines()
    offset.write_text("\n".join([*before, '{"position": 5}']))
    (offset.parent / f".{offset.name}.crc").unlink(missing_ok=True)
    log.follow()
    log.grow(2)
    log.follow()
    assert log.batches() == [[1, 2, 3, 4, 5], [6, 7]]


# ----------------------------------------------------------------------------------------------- files replaced


@pytest.fixture
def export(tmp_path):
    """Writes a folder of files again."""

    def write(*numbers):
        (tmp_path / "log").mkdir(exist_ok=True)
        lines = [json.dumps(write_event(made_up(number))) for number in numbers]
        (tmp_path / "log" / "1.ndjson").write_text("".join(line + "\n" for line in lines))
        return f"file://{tmp_path}/log"

    return write


def numbers(frame):
    return sorted(int(row.id) for row in frame.collect())


def test_a_query_reads_the_current_files_whatever_workers_have_seen(spark, export):
    register_data_source(spark)
    for given in ([1, 2, 3], [7, 8], [4, 5, 6, 7, 8], [1]):
        assert [numbers(load(spark, export(*given))) for _ in range(3)] == [given] * 3


def test_files_replaced_after_a_query_was_planned_are_refused(spark, export):
    register_data_source(spark)
    frame = load(spark, export(1, 2, 3))
    assert numbers(frame) == [1, 2, 3]
    other = load(spark, export(7, 8, 9))
    assert numbers(other) == [7, 8, 9]
    with pytest.raises(PythonException, match=r"OCQ-342.*changed after a query was planned"):
        numbers(frame)
    assert numbers(other) == [7, 8, 9]


@pytest.mark.release  # as the contract of the store
def test_a_stream_refuses_files_replaced_while_it_runs_and_a_new_one_reads_them(log, export, tmp_path):
    log.url = export(1, 2, 3, 4)
    with pytest.raises(StreamingQueryException, match="OCQ-342"):
        log.follow(lambda _number, _seen: export(7, 8, 9), maxEventsPerTrigger="2")
    with pytest.raises(StreamingQueryException, match=r"OCQ-411.* 1.ndjson no longer begins with the \d+ bytes"):
        log.follow()
    (log.folder / "checkpoint").rename(log.folder / "old")
    log.follow(maxEventsPerTrigger="2")
    assert log.batches() == [[1, 2], [3]]


# --------------------------------------------------------------------------------------- tables of other systems

MAPPING = {
    "mapping.table": "Domain Events",
    "mapping.position": "nr",
    "mapping.id": "key",
    "mapping.subject": "stream",
    "mapping.type": "Kind",
    "mapping.time": "at",
    "mapping.data": "body",
    "mapping.source-value": "urn:shop",
}
ON_BOTH = pytest.mark.parametrize("kind", ["sqlite", OTHERS[0]])


class Shop:
    """A table that another system fills."""

    def __init__(self, url):
        self.database = Database(url)
        key = {"sqlite": "INTEGER PRIMARY KEY", "postgresql": "BIGSERIAL PRIMARY KEY"}[self.database.kind]
        columns = f'nr {key}, key TEXT, stream TEXT, "Kind" TEXT, at TEXT, body TEXT'
        with self.database.writing() as connection:
            connection.execute(text(f'CREATE TABLE "Domain Events" ({columns})'))

    def sell(self, first, last):
        insert = text(
            'INSERT INTO "Domain Events" (key, stream, "Kind", at, body) VALUES (:id, :subject, :type, :time, :payload)'
        )
        with self.database.writing() as connection:
            connection.execute(insert, [made_up(n)._asdict() for n in range(first, last + 1)])


@pytest.fixture
def shop(fresh_url, kind, log):
    log.url = fresh_url(kind)
    shop = Shop(log.url)
    yield shop
    shop.database.close()


@pytest.mark.release(kind="sqlite")
@ON_BOTH
def test_a_table_of_another_system_can_be_read_as_a_log(spark, log, shop):
    shop.sell(1, COUNT)
    frame = load(spark, log.url, **MAPPING)
    assert frame.rdd.getNumPartitions() == 3
    assert frame.agg({"position": "count", "id": "sum"}).collect() == [(COUNT, COUNT * (COUNT + 1) / 2)]
    (row,) = frame.where("position = 7").selectExpr(*SHOWN).collect()
    assert tuple(row) == (7, "7", "urn:shop", "/x/1", "odd", 1_767_830_400, "application/json", "[7]", None)
    narrow = {"subject": "/x/1", "recursive": "false", "types": "odd", "from": "2026-01-05T00:00:00Z", "to": "20"}
    assert [row.position for row in load(spark, log.url, **MAPPING, **narrow).collect()] == [7, 13, 19]


@pytest.mark.release(kind="sqlite")
@ON_BOTH
def test_the_options_are_evaluated_in_the_table(spark, log, shop, pushing, tmp_path):
    shop.sell(1, 100)
    counts = tmp_path / "counts"
    counts.write_text("")
    spark.dataSource.register(counting_source(str(counts)))
    frame = spark.read.format("counting").options(url=log.url, **MAPPING, subject="/x/1").load()
    assert frame.where("type = 'odd'").count() == 17
    assert sum(map(int, counts.read_text().split())) == 17


@pytest.mark.release  # as a batch
@ON_BOTH
def test_a_stream_follows_a_table_of_another_system(log, shop):
    shop.sell(1, 5)
    log.follow(**MAPPING)
    shop.sell(6, 12)
    log.follow(**MAPPING, types="even", maxEventsPerTrigger="2")
    assert [batch for batch in log.batches() if batch] == [[1, 2, 3, 4, 5], [6, 8], [10, 12]]


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.parametrize("kind", OTHERS[:1])
def test_a_stream_does_not_pass_over_an_open_transaction_of_another_system(log, shop):
    shop.sell(1, 2)
    log.follow(**MAPPING)
    with shop.database.writing() as connection:
        insert = "INSERT INTO \"Domain Events\" (key, \"Kind\", body) VALUES (3, 'odd', '[3]')"
        connection.execute(text(insert))
        shop.sell(4, 4)
        with pytest.raises(StreamingQueryException, match=r"OCQ-315.* may still add events to 'Domain Events'"):
            log.follow(**MAPPING)
    log.follow(**MAPPING)
    assert log.batches() == [[1, 2], [3, 4]]


@pytest.mark.slow
@pytest.mark.parametrize("kind", OTHERS[:1])
def test_workers_read_the_planned_range_although_a_transaction_of_another_system_is_open(spark, log, shop):
    shop.sell(1, 5)
    frame = load(spark, log.url, **MAPPING)
    assert frame.rdd.getNumPartitions() == 1  # planned, with the end of the log as it is now
    with shop.database.writing() as connection:
        connection.execute(text("INSERT INTO \"Domain Events\" (key, \"Kind\", body) VALUES (6, 'odd', '[6]')"))
        shop.sell(7, 7)
        assert frame.count() == 5


def test_a_table_of_another_system_can_be_queried_as_a_sql_table(spark, fresh_url):
    register_data_source(spark)
    address = fresh_url("sqlite")
    shop = Shop(address)
    shop.sell(1, 9)
    shop.database.close()
    options = ", ".join(f"{option.replace('-', '_')} '{name}'" for option, name in MAPPING.items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW shop USING opencqrs OPTIONS (url '{address}', {options})")
    assert spark.sql("SELECT count(*) FROM shop WHERE type = 'odd'").collect()[0][0] == 5


def test_a_mapping_that_does_not_match_is_reported_when_the_query_is_planned(spark, shop, log):
    wrong = load(spark, log.url, **MAPPING | {"mapping.time": "happened"})
    with pytest.raises(AnalysisException) as caught:
        wrong.collect()
    assert "[OCQ-313] the table 'Domain Events' has no column for time (happened); it has Kind, at" in lines(caught)[0]
    assert lines(caught)[2] == "  fix:   fix mapping"


# ---------------------------------------------------------------------------------------------------------- errors


def lines(caught):
    return str(caught.value).splitlines()


@pytest.mark.few
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "[OCQ-410] the option 'url' is missing"),
        (
            {"url": "sqlite:///x", "schema": "isbn STRNG"},
            "[OCQ-410] the option 'schema' cannot be read: the column 'isbn'",
        ),
        (
            {"url": "sqlite:///x", "schema": "time DATE"},
            "the field 'time' of the option 'schema' has the name of a column",
        ),
        ({"url": "sqlite:///x", "from": "one"}, "[OCQ-410] the option 'from' must be a position from 1"),
        ({"url": "oracle://ada:secret@h/x"}, "[OCQ-302] event stores of the scheme 'oracle' are not supported"),
        ({"url": "sqlite:////nowhere/events.db"}, "names the file /nowhere/events.db, which does not exist"),
        ({"url": "sqlite://"}, "[OCQ-409] the option 'url' names an in-memory database"),
        ({"url": "sqlite:///x", "mapping.table": "log"}, "[OCQ-313] the mapping of a table lacks position, id, type"),
        ({"url": "file:/nowhere", **MAPPING}, "[OCQ-325] mapping names a table, but the event store is not a SQL"),
        ({"url": "mariadb://ada:secret@h/shop", **MAPPING}, "[OCQ-325] tables of others cannot be read on MariaDB"),
    ],
)
@pytest.mark.parametrize("reader", ["read", "readStream"])
def test_an_error_is_raised_by_load_with_a_short_message(spark, reader, options, says):
    register_data_source(spark)
    with pytest.raises(AnalysisException) as caught:
        getattr(spark, reader).format("opencqrs").options(**options).load()
    assert says in lines(caught)[0]
    assert len(lines(caught)) <= 4
    assert "secret" not in str(caught.value)
    assert not Path("/nowhere").exists()


@BY_READERS
def test_an_unavailable_store_is_reported_when_the_query_is_planned(spark):
    register_data_source(spark)
    away = load(spark, "postgresql://ada:secret@127.0.0.1:1/log")
    with pytest.raises(AnalysisException) as caught:
        away.collect()
    assert "[OCQ-304] the database cannot be reached" in lines(caught)[0]
    assert len(lines(caught)) <= 4
    assert "secret" not in str(caught.value)


@BY_READERS
@pytest.mark.parametrize("kind", OTHERS)
def test_a_refused_login_is_reported_when_the_query_is_planned(spark, fresh_url, kind):
    register_data_source(spark)
    url = make_url(fresh_url(kind)).set(username="ada", password="secret")
    with pytest.raises(AnalysisException) as caught:
        load(spark, url.render_as_string(hide_password=False)).collect()
    assert "[OCQ-304] the database cannot be used (" in lines(caught)[0]
    assert "ada" in lines(caught)[0]
    assert len(lines(caught)) <= 4
    assert "secret" not in str(caught.value)


def hidden_source(address):
    """Return a data source whose URL holds a password; its store breaks at position 3."""

    class Breaking:
        def __init__(self, store):
            self.head = store.head
            self.fingerprint, self.verify = store.fingerprint, store.verify
            self.store = store

        def read(self, after, limit, selection, upto=None):
            if after >= 3:
                raise ConnectionError("the connection is lost")
            events = self.store.read(after, 3, selection, upto).events
            return Slice(after, 3, events)

        def is_outage(self, error):
            return isinstance(error, ConnectionError)

    class HiddenSource(EventStoreSource):
        @classmethod
        def name(cls):
            return "hidden"

        @staticmethod
        def open_source(url, mapping=None):
            return Breaking(EventStoreSource.open_source(address))

    return HiddenSource


URL = "postgresql://ada:secret@host/log"


@pytest.mark.parametrize("mode", ["simple", "extended", "formatted", "cost"])
def test_the_password_of_the_url_is_in_no_plan(spark, url, capsys, mode):
    spark.dataSource.register(hidden_source(url))
    frame = spark.read.format("hidden").option("url", URL).load().where("type = 'odd'")
    frame.explain(mode)
    shown = capsys.readouterr().out
    assert "hidden" in shown
    assert "secret" not in shown
    assert "secret" not in frame._jdf.queryExecution().toString()


@BY_READERS
def test_a_store_that_becomes_unavailable_while_read_is_reported_without_a_stack_trace(spark, url):
    spark.dataSource.register(hidden_source(url))
    with pytest.raises(PythonException) as caught:
        spark.read.format("hidden").option("url", URL).load().collect()
    assert "[OCQ-412] the event store is unavailable (the connection is lost)" in "".join(lines(caught)[:2])
    assert "Traceback" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_stream_reports_why_it_ended_without_its_password(spark, url, tmp_path):
    spark.dataSource.register(hidden_source(url))
    stream = spark.readStream.format("hidden").option("url", URL).load().writeStream.format("noop")
    with pytest.raises(StreamingQueryException) as caught:
        run_to_its_end(stream.option("checkpointLocation", str(tmp_path / "checkpoint")).start)
    assert "[OCQ-412] the event store is unavailable (the connection is lost)" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert not any(b"secret" in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
