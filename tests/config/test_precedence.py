"""Which source wins, and how the value says where it comes from."""

from asyncio import Runner
from contextlib import ExitStack, closing
from contextvars import copy_context
from threading import Thread

import pytest

from opencqrs_py.config import OriginKind, pinned

KEY = "event-handling.standard.fetch.subject"
VARIABLE = "OPENCQRS__EVENT_HANDLING__STANDARD__FETCH__SUBJECT"
JSON = "OPENCQRS_APPLICATION_JSON"


def in_yaml(value):
    return f"opencqrs.{KEY}: {value}\n"


FILES = [
    ("package/application.yaml", in_yaml("/package")),
    ("package/application-prod.yaml", in_yaml("/package-prod")),
    ("application.yaml", in_yaml("/yaml")),
    ("application.yml", in_yaml("/yml")),
    ("application.toml", f'opencqrs.{KEY} = "/toml"\n'),
    ("application.properties", f"opencqrs.{KEY}=/properties\n"),
    ("config/application.yaml", in_yaml("/config")),
    ("application-test.yaml", in_yaml("/test")),
    ("config/application-test.yaml", in_yaml("/config-test")),
    ("application-prod.yaml", in_yaml("/prod")),
    ("config/application-prod.properties", f"opencqrs.{KEY}=/config-prod\n"),
    (".env", f"{VARIABLE}=/dotenv\n"),
    ("secrets/opencqrs.event-handling.standard.fetch.subject", "/secret\n"),
    (f"secrets/{VARIABLE}", "/secret-variable\n"),
    (f"secrets/{JSON}", f'{{"{KEY}": "/secret-json"}}\n'),
]
SHOWN = {
    "/package": "{package}/application.yaml:1:49",
    "/package-prod": "{package}/application-prod.yaml:1:49",
    "/yaml": "application.yaml:1:49",
    "/yml": "application.yml:1:49",
    "/toml": "application.toml:1:50",
    "/properties": "application.properties:1:48",
    "/config": "config/application.yaml:1:49",
    "/test": "application-test.yaml:1:49",
    "/config-test": "config/application-test.yaml:1:49",
    "/prod": "application-prod.yaml:1:49",
    "/config-prod": "config/application-prod.properties:1:48",
    "/dotenv": ".env:1",
    "/secret": "secret file secrets/opencqrs.event-handling.standard.fetch.subject",
    "/secret-variable": f"secret file secrets/{VARIABLE}",
    "/secret-json": f"secret file secrets/{JSON}",
    "/environ": f"environment variable {VARIABLE}",
    "/json": f"environment variable {JSON}",
    "/first": f"argument --set {KEY}",
    "/second": f"argument --set opencqrs.{KEY}",
    "/pinned": "property of the test",
    "/inner": "property of the test",
}
ORDER = ["/", "/code", *SHOWN]


def given(project, tmp_path_factory, count):
    """Write the lowest ``count`` files and return the arguments of the sources above them."""
    package = tmp_path_factory.mktemp("package")
    for name, text in FILES[:count]:
        if name.startswith("package/"):
            (package / name.removeprefix("package/")).write_text(text)
        else:
            project.write(name, text)
    arguments = {"profiles": ["test", "prod"], "package": package, "defaults": {KEY: "/code"}}
    if any(name.startswith("secrets/") for name, _ in FILES[:count]):
        arguments["overrides"] = ["config.import=secrets"]
    return arguments


@pytest.mark.parametrize("count", range(len(FILES) + 1))
def test_each_file_overrides_those_below_it(project, tmp_path_factory, count):
    arguments = given(project, tmp_path_factory, count)
    configuration = project.load(**arguments)
    expected = ORDER[count + 1]
    assert configuration.group("any").fetch.subject == expected
    if count:
        shown = SHOWN[expected].format(package=arguments["package"])
        assert str(configuration.origin(KEY)) == shown
        assert str(configuration.origin("event-handling.groups.any.fetch.subject")) == f"standard ({shown})"
        assert len(configuration.losers(KEY)) == count


def test_sources_other_than_files_override_all_files(project, tmp_path_factory):
    arguments = given(project, tmp_path_factory, len(FILES))
    steps = [
        ("/environ", {"environ": {VARIABLE: "/environ"}}),
        ("/json", {"environ": {VARIABLE: "/environ", JSON: f'{{"{KEY}": "/json"}}'}}),
        ("/first", {"overrides": ["config.import=secrets", f"{KEY}=/first"]}),
        ("/second", {"overrides": ["config.import=secrets", f"{KEY}=/first", f"opencqrs.{KEY}=/second"]}),
    ]
    for expected, more in steps:
        arguments |= more
        configuration = project.load(**arguments)
        assert configuration.group("any").fetch.subject == expected
        assert str(configuration.origin(KEY)) == SHOWN[expected]
    with pinned({KEY: "/pinned"}):
        assert project.load(**arguments).group("any").fetch.subject == "/pinned"
        with pinned({"opencqrs": {"event-handling": {"standard": {"fetch": {"subject": "/inner"}}}}}):
            configuration = project.load(**arguments)
    assert configuration.group("any").fetch.subject == "/inner"
    assert str(configuration.origin(KEY)) == SHOWN["/inner"]
    assert [lost.origin.kind for lost in configuration.losers(KEY)][:3] == [
        OriginKind.TEST,
        OriginKind.ARGUMENT,
        OriginKind.ARGUMENT,
    ]
    assert project.load(**arguments).group("any").fetch.subject == "/second"


@pytest.mark.parametrize("text", ["{json}\n{variable}\n", "{variable}\n{json}\n"])
def test_json_in_the_dotenv_file_overrides_its_other_variables_and_nothing_above(project, text):
    line = f'{JSON}=\'{{"{KEY}": "/in-json", "profiles.active": "test"}}\''
    project.write(".env", text.format(json=line, variable=f"{VARIABLE}=/dotenv"))
    project.write("application-test.yaml", in_yaml("/test"))
    configuration = project.load()
    assert (configuration.profiles, configuration.group("any").fetch.subject) == (("test",), "/in-json")
    assert str(configuration.origin(KEY)) == f".env:{1 if text.startswith('{json}') else 2}"
    assert project.load(environ={VARIABLE: "/environ"}).group("any").fetch.subject == "/environ"
    assert project.load(environ={JSON: f'{{"{KEY}": "/json"}}'}).group("any").fetch.subject == "/json"


def in_thread(call):
    thread = Thread(target=call)
    thread.start()
    thread.join()


def test_pinned_settings_apply_in_other_threads_too_where_inner_ones_win(project):
    def subjects():
        found.append(project.load().group("any").fetch.subject)
        with pinned({KEY: "/of-thread"}):
            found.append(project.load().group("any").fetch.subject)

    found = []
    for properties in ({KEY: "/pinned"}, {}):
        with pinned(properties):
            in_thread(subjects)
    subjects()
    assert found == ["/pinned", "/of-thread", "/", "/of-thread", "/", "/of-thread"]


def on_loop(runner, context, call):
    async def called():
        call()

    runner.run(called())


WHERE_CONTEXTS_ARE_OLDER = {
    "event loop": on_loop,
    "copied context": lambda runner, context, call: context.run(call),
    "thread in a copied context": lambda runner, context, call: in_thread(lambda: context.run(call)),
}


@pytest.mark.parametrize("run", WHERE_CONTEXTS_ARE_OLDER.values(), ids=WHERE_CONTEXTS_ARE_OLDER)
def test_pinned_settings_apply_where_the_context_is_older_or_newer_than_they_are(project, run):
    def subjects():
        group = project.load().group("any")
        found.append((group.fetch.subject, group.processing.engine.value))

    found = []
    with closing(Runner()) as runner:
        with pinned({KEY: "/module", "event-handling.standard.processing.engine": "thread"}):
            runner.get_loop()  # copies the context
            context = copy_context()
            for subject in ("/first", "/second"):
                with pinned({KEY: subject}):
                    run(runner, context, subjects)
            run(runner, context, subjects)
        run(runner, context, subjects)
    assert found == [("/first", "thread"), ("/second", "thread"), ("/module", "thread"), ("/", "spark")]


@pytest.mark.parametrize("run", WHERE_CONTEXTS_ARE_OLDER.values(), ids=WHERE_CONTEXTS_ARE_OLDER)
def test_settings_pinned_in_another_context_apply_until_they_are_released(project, run):
    with Runner() as runner, ExitStack() as stack:
        run(runner, copy_context(), lambda: stack.enter_context(pinned({KEY: "/pinned"})))
        assert project.load().group("any").fetch.subject == "/pinned"
        stack.close()
        assert project.load().group("any").fetch.subject == "/"


def test_defaults_in_code_override_only_built_in_ones(project):
    configuration = project.load(defaults={"event-handling": {"groups": {"books": {"retry.max-attempts": 3}}}})
    assert configuration.group("books").retry.max_attempts == 3
    origin = configuration.origin("event-handling.groups.books.retry.max-attempts")
    assert (str(origin), origin.is_default) == ("default given in code", False)


def test_sources_are_merged_before_inheritance(project):
    project.yaml(f"""
        opencqrs:
          {KEY}: /standard
          event-handling.groups.books.fetch.subject: /books
    """)
    books = project.load(overrides=[f"{KEY}=/from-the-highest-source"]).group("books")
    assert books.fetch.subject == "/books"


def test_the_process_environment_is_read_when_no_other_is_given(project, monkeypatch):
    monkeypatch.setenv(VARIABLE, "/process")
    assert project.load(environ=None).group("any").fetch.subject == "/process"


@pytest.mark.parametrize(
    ("yaml", "key", "shown"),
    [
        ("", "spark.master", "built-in default"),
        ("", "event-handling.groups.books.retry.policy", "built-in default"),
        ("opencqrs.spark.master: local", "opencqrs.spark.MASTER", "application.yaml:1:24"),
        ("opencqrs.spark.master: ~", "spark.master", "built-in default (reset by application.yaml:1:24)"),
        (
            "opencqrs.event-handling.standard.fetch.subject: ~",
            "event-handling.groups.books.fetch.subject",
            "built-in default (reset by application.yaml:1:49)",
        ),
        (
            "opencqrs.event-handling.standard.progress: {tracker-ref: mine, tracking: sql}",
            "event-handling.groups.books.progress.tracking",
            "replaced by progress.tracker-ref (standard (application.yaml:1:58))",
        ),
        (
            "opencqrs.event-handling: {standard.progress.tracker-ref: mine, groups.Books.progress.tracking: sql}",
            "event-handling.groups.books.progress.tracker-ref",
            "replaced by progress.tracking (application.yaml:1:96)",
        ),
        ("opencqrs.spark.conf: {spark.ui.enabled: no}", "spark.conf.spark.ui.enabled", "application.yaml:1:41"),
        (
            "opencqrs.event-handling.groups.v1.2.fetch.subject: /",
            "event-handling.groups[v1.2].fetch.subject",
            "application.yaml:1:52",
        ),
    ],
)
def test_every_value_has_its_origin(project, yaml, key, shown):
    assert str(project.yaml(yaml).load().origin(key)) == shown
