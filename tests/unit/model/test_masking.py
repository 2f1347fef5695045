import pytest

from opencqrs_py.model.masking import forget, holds_secret, mask_url, masked, remember, scrubbed, secrets_in


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
        ("host=h password='p q' dbname=d", "host=h password=*** dbname=d"),
        ("jdbc:postgresql://h/db?user=u&password=p&x=1", "jdbc:postgresql://h/db?user=u&password=***&x=1"),
        ("jdbc:sqlserver://h:1433;user=sa;password={p;q};x=1", "jdbc:sqlserver://h:1433;user=sa;password=***;x=1"),
        ("jdbc:mysql://u:p@h/db", "jdbc:mysql://u:***@h/db"),
        ("jdbc:oracle:thin:scott/tiger@//h:1521/x", "jdbc:oracle:thin:scott/***@//h:1521/x"),
        ("redis://:p@h:6379/0", "redis://:***@h:6379/0"),
        ("redis://p@h:6379/0", "redis://***@h:6379/0"),
        ("redis://h:6379/0", "redis://h:6379/0"),
        ("postgresql://h/d?api%5Fkey=p&x=1", "postgresql://h/d?api%5Fkey=***&x=1"),
        ("postgresql://h/d?options=-c%20password%3Dp&x=1", "postgresql://h/d?options=-c%20password%3D***&x=1"),
        ("https://h/?x-functions-key=p&x=1", "https://h/?x-functions-key=***&x=1"),
        ("host=h dbpass=p dbname=d", "host=h dbpass=*** dbname=d"),
        ("postgres:p@h/db", "postgres:***@h/db"),
        ("https://a.example/x?sv=1&sig=p&se=1", "https://a.example/x?sv=1&sig=***&se=1"),
        ("AccountName=a;AccountKey=p==;EndpointSuffix=x", "AccountName=a;AccountKey=***;EndpointSuffix=x"),
        ("-Dkey.password='p q' -Dx=1", "-Dkey.password=*** -Dx=1"),
        ("postgresql://h/db?password=p;q&x=1", "postgresql://h/db?password=***&x=1"),
        ("postgresql://h/db?x=1&sslpassword=p q", "postgresql://h/db?x=1&sslpassword=***"),
        ('postgresql://h/db?password="p"q&x=1', "postgresql://h/db?password=***&x=1"),
        ("host=h password='p\\' q' dbname=d", "host=h password=*** dbname=d"),
        ("x ${DB_PASSWORD:p} ${DB_HOST:h}", "x ${DB_PASSWORD:***} ${DB_HOST:h}"),
        ("${db.pass:${OTHER:p}q} ${compass:n}", "${db.pass:***} ${compass:n}"),
        ("${DB_PASSWORD} ${DB_PASSWORD:}", "${DB_PASSWORD} ${DB_PASSWORD:}"),
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
        ("spark.hadoop.fs.azure.account.key.acc.dfs.core.windows.net", True),
        ("fs.azure.sas.container.acc.blob.core.windows.net", True),
        ("fs.azure.account.oauth2.client.secret", True),
        ("javax.jdo.option.ConnectionPassword", True),
        ("DB_PWD", True),
        *((name, True) for name in ("auth", "AUTHORIZATION", "pass", "db.pass", "dbpass", "PGPASS", "x-functions-key")),
        *((name, False) for name in ("author", "passed", "spark.authenticate", "passthrough", "bypass", "compass")),
        ("metadata-key", False),
        ("SASHA", False),
        ("spark.sql.shuffle.partitions", False),
        ("keyspace", False),
    ],
)
def test_keys_that_name_a_secret_are_recognized(key, secret):
    assert holds_secret(key) is secret


@pytest.mark.parametrize(
    ("url", "secrets"),
    [
        ("postgresql://u:p%40ss@h/db?api_key=k", {"p%40ss", "p@ss", "k"}),
        ("postgresql://h/db?password=p;q&x=1", {"p;q", "p"}),
        ("eventsourcingdb://tok@h", {"tok"}),
        ("https://u:pass@h", {"u:pass", "pass"}),
        ("jdbc:sqlserver://h;password='a b'", {"a b"}),
        ("sqlite:///events.db", set()),
    ],
)
def test_the_secrets_of_a_url_are_found_both_encoded_and_decoded(url, secrets):
    assert secrets_in(url) == secrets


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no role hunter2, sorry", "no role ***, sorry"),
        ("hunter22 and xhunter2", "hunter22 and xhunter2"),
        ("two: postgresql://u:a@h, http://b@h/x and d", "two: postgresql://u:***@h, http://***@h/x and d"),
        ('invalid dsn "host=h password=abc dbname=d"', 'invalid dsn "host=h password=*** dbname=d"'),
        ("abc true 12 ${DB_PASSWORD}", "abc true 12 ${DB_PASSWORD}"),
        ('no "http://h?a=1&token=t;u" for "x"', 'no "http://h?a=1&token=*** for "x"'),
    ],
)
def test_secrets_are_masked_in_messages_of_other_software(text, shown):
    remember(["hunter2", "abc", "true", "", "12", "${DB_PASSWORD}"])
    assert scrubbed(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("{'password': 'p\\'q', 'n': 1}", "{'password': ***, 'n': 1}"),
        ('{"db_password": "p q", "token": "t"}', '{"db_password": ***, "token": ***}'),
        ("{'Authorization': 'Bearer t'}", "{'Authorization': ***}"),
        ("user: u\npassword: p\nport: 1", "user: u\npassword: ***\nport: 1"),
        ("(host: h, password: p)", "(host: h, password: ***)"),
        ('api_key: "p q"', "api_key: ***"),
        ("GET / Authorization: Bearer t.u-v", "GET / Authorization: Bearer ***"),
        ("Authorization: Basic dTpw", "Authorization: Basic ***"),
        ("sent Bearer abc123 to h", "sent Bearer *** to h"),
        ("failed (sent Bearer abc123); again", "failed (sent Bearer ***); again"),
        ("psql --password p --host h", "psql --password *** --host h"),
        ("run --api-token 'a b' now", "run --api-token *** now"),
    ],
)
def test_common_prefixes_of_secrets_are_recognized(text, shown):
    assert scrubbed(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "passed: 3",
        "author: Ann",
        '{"author": "Ann", "passed": "yes", "max_tokens": 5}',
        "Access denied for user 'u'@'h' (using password: YES)",
        "wrong password: the server refused it",
        "connect(password: str, port: int)",
        "unexpected token: }",
        "no Bearer authentication",
        "authentication failed: no password supplied",
        "leave out --password or --user",
        "--password --host h",
        "event-store.api-token: it is empty",
        "compass: north",
    ],
)
def test_harmless_text_is_unchanged(text):
    assert scrubbed(text) == text


def test_the_longest_secret_is_masked_as_a_whole():
    remember(["hunter2", "hunter2-old"])
    assert scrubbed("was hunter2-old") == "was ***"


def test_only_the_newest_thousand_secrets_are_remembered():
    remember(f"secret-{n}" for n in range(1_001))
    assert scrubbed("secret-0") == "secret-0"
    assert scrubbed("secret-1") == scrubbed("secret-1000") == "***"
    forget()
    assert scrubbed("secret-1000") == "secret-1000"


def test_nested_values_are_masked_by_their_keys():
    value = {"a.password": "p", "url": "x://u:p@h", "n": 1, "list": ["x://u:p@h"], "deep": {"token": "t"}}
    assert masked("conf", value) == {
        "a.password": "***",
        "url": "x://u:***@h",
        "n": 1,
        "list": ["x://u:***@h"],
        "deep": {"token": "***"},
    }


@pytest.mark.parametrize("part", ["token", "x-secret-", '"password', "?token", "${token", "jdbc:oracle:a:"])
def test_a_long_malicious_text_is_searched_in_bounded_time(part):
    text = part * 20_000  # patterns that scanned a name repeatedly took minutes
    assert scrubbed(text) == text


@pytest.mark.parametrize("url", ["https://u:{}@host/", "https://{}@host/", "postgresql://u:{}@host/db"])
def test_a_long_token_in_a_url_within_a_text_is_masked(url: str) -> None:
    """A token for a cloud database has several thousand characters."""
    token = "t0" * 1_900
    assert "t0t0" not in scrubbed(f"no answer of {url.format(token)} in 5 s")
