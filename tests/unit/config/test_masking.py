import pytest

from opencqrs_py.config.masking import holds_secret, mask_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///events.db", "sqlite:///events.db"),
        ("postgresql://user@host/db", "postgresql://user@host/db"),
        ("postgresql://host:5432/db", "postgresql://host:5432/db"),
        ("postgresql://user:pass@host:5432/db", "postgresql://user:***@host:5432/db"),
        ("postgresql+psycopg://user:p@ss@host/db", "postgresql+psycopg://user:***@host/db"),
        ("postgresql://user:p/a?s@host/db", "postgresql://user:***@host/db"),
        ("https://:token@host", "https://***@host"),
        ("http://token@host:3000/path", "http://***@host:3000/path"),
        ("eventsourcingdb://token@host", "eventsourcingdb://***@host"),
        ("eventsourcingdb://user:to@k/en@host", "eventsourcingdb://***@host"),
        ("EventSourcingDB+https://token@host:1", "EventSourcingDB+https://***@host:1"),
        ("eventsourcingdb+http:token@host", "eventsourcingdb+http:***@host"),
        ("eventsourcingdb://host:3000", "eventsourcingdb://host:3000"),
        ("postgresql://host/db?user=u&password=p&x=1", "postgresql://host/db?user=u&password=***&x=1"),
        ("https://host?api_key=1&access-token=2", "https://host?api_key=***&access-token=***"),
        ("host=h password=p dbname=d", "host=h password=*** dbname=d"),
    ],
)
def test_passwords_are_masked(url, shown):
    assert mask_url(url) == shown


@pytest.mark.parametrize(
    ("key", "secret"),
    [
        ("spark.ssl.keyPassword", True),
        ("spark.hadoop.fs.s3a.secret.key", True),
        ("spark.hadoop.fs.s3a.access.key", True),
        ("api-token", True),
        ("spark.sql.shuffle.partitions", False),
        ("keyspace", False),
    ],
)
def test_keys_that_speak_of_secrets_are_known(key, secret):
    assert holds_secret(key) is secret
