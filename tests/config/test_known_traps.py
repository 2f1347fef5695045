"""Each row is a case that pydantic-settings alone gets wrong, or reports badly, with what a user expects instead."""

import pytest

BOOKS = """
    opencqrs:
      event-handling:
        groups:
          books:
            fetch: {subject: /from-file}
            life-cycle: {partitions: 2}
"""
PREFIX = "OPENCQRS__EVENT_HANDLING__GROUPS__"
JSON = "OPENCQRS_APPLICATION_JSON"


@pytest.mark.parametrize(
    "yaml",
    [
        BOOKS,
        BOOKS.replace("event-handling", "event_handling").replace("life-cycle", "life_cycle"),
        BOOKS.replace("event-handling", "eventHandling").replace("life-cycle", "lifeCycle"),
        BOOKS.replace("opencqrs", "OPENCQRS").replace("event-handling", "EVENT_HANDLING"),
    ],
    ids=["kebab", "snake", "camel", "upper"],
)
@pytest.mark.parametrize(
    "name",
    [
        "OPENCQRS__EVENT_HANDLING__GROUPS__BOOKS__FETCH__SUBJECT",
        "OPENCQRS__EVENTHANDLING__GROUPS__BOOKS__FETCH__SUBJECT",
        "OPENCQRS__EVENT-HANDLING__GROUPS__BOOKS__FETCH__SUBJECT",
        "OPENCQRS_EVENT_HANDLING__GROUPS__BOOKS__FETCH__SUBJECT",
        "OPENCQRS_EVENTHANDLING_GROUPS_BOOKS_FETCH_SUBJECT",
        "OPENCQRS_EVENT_HANDLING_GROUPS_BOOKS_FETCH_SUBJECT",
        "opencqrs__event_handling__groups__books__fetch__subject",
        "opencqrs.event-handling.groups.books.fetch.subject",
    ],
)
def test_a_variable_in_any_spelling_overrides_single_settings_of_a_file(project, yaml, name):
    configuration = project.yaml(yaml).load(environ={name: "/from-variable"})
    books = configuration.group("books")
    assert configuration.group_names == ("books",)
    assert (books.fetch.subject, books.life_cycle.partitions) == ("/from-variable", 2)


@pytest.mark.parametrize(
    ("group", "in_variable"),
    [
        ("Backup", "BACKUP"),
        ("Backup", "Backup"),
        ("book-catalog", "BOOK_CATALOG"),
        ("book-catalog", "BOOKCATALOG"),
        ("book-catalog", "BOOK-CATALOG"),
        ("bookCatalog", "BOOK_CATALOG"),
        ("book__catalog", "BOOK__CATALOG"),
        ("v1.2", "V1.2"),
        ("v1.2", "V1_2"),
        ("Bücher", "BÜCHER"),
    ],
)
def test_a_variable_reaches_a_group_of_a_file_or_of_a_handler_under_its_written_name(project, group, in_variable):
    environ = {f"{PREFIX}{in_variable}__FETCH__SUBJECT": "/x"}
    from_handler = project.load(environ=environ, groups=[group])
    assert from_handler.group_names == (group,)
    assert from_handler.group(group).fetch.subject == "/x"
    project.yaml(f'opencqrs: {{event-handling: {{groups: {{"{group}": {{life-cycle: {{partitions: 2}}}}}}}}}}')
    from_file = project.load(environ=environ)
    assert from_file.group_names == (group,)
    assert (from_file.group(group).fetch.subject, from_file.group(group).life_cycle.partitions) == ("/x", 2)


@pytest.mark.parametrize(
    "style", ["OPENCQRS__EVENT_HANDLING__GROUPS__{}__FETCH__SUBJECT", "OPENCQRS_EVENTHANDLING_GROUPS_{}_FETCH_SUBJECT"]
)
@pytest.mark.parametrize(
    ("in_variable", "name"), [("BOOKS", "books"), ("BOOK_CATALOG", "book_catalog"), ("V1.2", "v1.2")]
)
def test_a_group_named_only_by_a_variable_is_in_lower_case(project, style, in_variable, name):
    configuration = project.load(environ={style.format(in_variable): "/x"})
    assert configuration.group_names == (name,)
    assert configuration.group(name).fetch.subject == "/x"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("OPENCQRS__EVENT_HANDLIN__GROUPS__BOOKS__FETCH__SUBJECT", f"{PREFIX}BOOKS__FETCH__SUBJECT"),
        ("OPENCQRS__EVENT_HANDLING__GROUPS__BOOKS__LIFE_CYCLE__PARTITION", f"{PREFIX}BOOKS__LIFE_CYCLE__PARTITIONS"),
        ("OPENCQRS_EVENTHANDLING_GROUPS_BOOKS_FETCH_SUBJCT", f"{PREFIX}BOOKS__FETCH__SUBJECT"),
        ("OPENCQRS_EVENTHANDLING_GROUPS_BOOKS_LIFCYCLE_PARTITIONS", f"{PREFIX}BOOKS__LIFE_CYCLE__PARTITIONS"),
        ("OPENCQRS__PROFILE__ACTIVE", "OPENCQRS__PROFILES__ACTIVE"),
        ("OPENCQR__EVENT_HANDLING__GROUPS__BOOKS__FETCH__SUBJECT", f"{PREFIX}BOOKS__FETCH__SUBJECT"),
        ("OPEN_CQRS__EVENT_HANDLING__GROUPS__BOOKS__FETCH__SUBJECT", f"{PREFIX}BOOKS__FETCH__SUBJECT"),
        ("OPENCRQS_EVENTHANDLING_STANDARD_RETRY_POLICY", "OPENCQRS__EVENT_HANDLING__STANDARD__RETRY__POLICY"),
    ],
)
def test_a_misspelt_variable_is_reported_with_the_intended_one(project, name, meant):
    error = project.error(environ={name: "prod"}, groups=["books"])
    assert error.code == "OCQ-104"
    assert name in error.what
    assert str(error.where) == f"environment variable {name}"
    assert error.fix == f"did you mean {meant}?"


def test_a_variable_for_a_section_is_reported_with_the_possible_settings(project):
    error = project.error(environ={"OPENCQRS_PROFILES": "prod"})
    assert error.what == "profiles is a section, not a single value or a list"
    assert error.fix == "put one of its settings below it: active"


@pytest.mark.parametrize("name", ["OPENCQRS_FOO", "OPENCQRS__NOTHING__LIKE__IT"])
def test_a_variable_similar_to_no_setting_is_still_an_error(project, name):
    assert project.error(environ={name: "1"}).fix == (
        "write OPENCQRS and the names of a setting with __ between them, like OPENCQRS__SPARK__MASTER"
    )


@pytest.mark.parametrize(
    "name", ["OPEN_DOOR", "SPARK_MASTER", "EVENT_HANDLING__STANDARD__RETRY__POLICY", "PATH", "_", "OPENCQRSX"]
)
def test_variables_of_other_programs_are_ignored(project, name):
    assert project.load(environ={name: "x"}).warnings == ()


@pytest.mark.parametrize(
    "environ",
    [
        {"OPENCQRS__EVENT_HANDLING__GROUPS": '{"books": {"fetch": {"subject": "/x"}}}'},
        {"OPENCQRS__EVENT_HANDLING__GROUPS__BOOKS": '{"fetch": {"subject": "/x"}}'},
        {"OPENCQRS_EVENTHANDLING_GROUPS_BOOKS": '{"fetch.subject": "/x"}'},
        {"OPENCQRS_EVENTHANDLING_GROUPS_BOOKS_FETCH": '{"subject": "/x"}'},
        {"OPENCQRS__EVENT_HANDLING": '{"groups": {"books": {"fetch": {"subject": "/x"}}}}'},
        {"OPENCQRS": '{"event-handling": {"groups": {"books": {"fetch": {"subject": "/x"}}}}}'},
        {"OPENCQRS_APPLICATION_JSON": '{"opencqrs": {"eventHandling": {"groups": {"books": {"fetch.subject":"/x"}}}}}'},
        {"OPENCQRS_APPLICATION_JSON": '{"event-handling.groups.books.fetch.subject": "/x"}'},
    ],
)
def test_json_sections_merge_with_files_and_single_variables(project, environ):
    project.yaml(BOOKS)
    books = project.load(environ={**environ, f"{PREFIX}BOOKS__RETRY__MAX_ATTEMPTS": "3"}).group("books")
    assert (books.fetch.subject, books.life_cycle.partitions, books.retry.max_attempts) == ("/x", 2, 3)


FETCH = '{"subject": "/js", "recursive": false}'


@pytest.mark.parametrize(
    "said",
    [
        {"overrides": [f"event-handling.groups.book_catalog.fetch={FETCH}"]},
        {"overrides": [f'event-handling.groups={{"BookCatalog": {{"fetch": {FETCH}}}}}']},
        {"overrides": [f'event-handling.groups.bookCatalog={{"fetch": {FETCH}}}']},
        {"overrides": ['eventHandling.groups[BOOK_CATALOG]={"fetch.subject": "/js"}']},
        {"defaults": {"event-handling.groups.book_catalog.fetch": FETCH}},
        {"environ": {JSON: f'{{"event-handling.groups.book_catalog": {{"fetch": {FETCH}}}}}'}},
        {"environ": {f"{PREFIX}BOOK_CATALOG__FETCH": FETCH}},
        {"environ": {"OPENCQRS_EVENTHANDLING_GROUPS_BOOKCATALOG_FETCH": FETCH}},
        {"environ": {f"{PREFIX}BOOK_CATALOG__FETCH": FETCH, f"{PREFIX}BOOKCATALOG__RETRY": '{"max-attempts": 3}'}},
    ],
)
@pytest.mark.parametrize("known", ["book-catalog", "book_catalog", "BookCatalog"])
def test_a_json_section_matches_a_group_in_any_spelling(project, said, known):
    project.yaml(f"opencqrs.event-handling.groups.{known}.life-cycle.partitions: 2")
    configuration = project.load(groups=["book-catalog"], **said)
    assert configuration.group_names == ("book-catalog",)
    group = configuration.group("book-catalog")
    assert (group.fetch.subject, group.life_cycle.partitions) == ("/js", 2)


def test_a_json_variable_can_configure_a_group_with_a_dot(project):
    configuration = project.load(groups=["v1.2"], environ={f"{PREFIX}V1_2__FETCH": FETCH})
    assert configuration.group_names == ("v1.2",)
    assert configuration.group("v1.2").fetch.subject == "/js"


@pytest.mark.parametrize(
    "said",
    [
        {"event-handling.groups": {"book_catalog": {"fetch": FETCH}, "book-catalog": {"fetch.recursive": "true"}}},
        {"event-handling.groups": f'{{"book_catalog": {{"fetch": {FETCH}}}, "bookCatalog": {{}}}}'},
    ],
)
def test_two_spellings_of_a_group_next_to_json_are_an_error(project, said):
    error = project.error(groups=["book-catalog"], defaults=said)
    assert error.code == "OCQ-106"
    assert error.what.startswith("book_catalog and book")
    assert error.what.endswith(" are two spellings of one name")


def test_a_single_variable_overrides_json_of_its_section(project):
    environ = {f"{PREFIX}BOOKS": '{"fetch": {"subject": "/a"}}', f"{PREFIX}BOOKS__FETCH__SUBJECT": "/b"}
    assert project.load(environ=environ).group("books").fetch.subject == "/b"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (f"{PREFIX}BOOKS", '{"fetch": ', "event-handling.groups.books holds broken JSON: Expecting value at line 1"),
        (f"{PREFIX}BOOKS", '{"fetch": {}, "fetch": {}}', "the key 'fetch' appears twice"),
        (f"{PREFIX}BOOKS", '{"fetch": 3}', "event-handling.groups.books.fetch is a section"),
        ("OPENCQRS__PROFILES__ACTIVE", '["a", ', "profiles.active holds broken JSON"),
        ("OPENCQRS__PROFILES__ACTIVE", '["a", ["b"]]', "profiles.active is a list of texts"),
        ("OPENCQRS__EVENT_HANDLING", "[" * 100_000, "event-handling is a section"),
        ("OPENCQRS__PROFILES__ACTIVE", "[" * 100_000, "nested too deeply"),
        ("OPENCQRS_APPLICATION_JSON", "{", "OPENCQRS_APPLICATION_JSON holds broken JSON"),
        ("OPENCQRS_APPLICATION_JSON", "[]", "OPENCQRS_APPLICATION_JSON holds no JSON object"),
    ],
)
def test_invalid_json_is_reported_with_variable_and_setting(project, name, text, said):
    error = project.error(environ={name: text})
    assert error.code == "OCQ-107"
    assert said in error.what
    assert error.where == f"environment variable {name}"


@pytest.mark.parametrize(
    ("name", "where"),
    [(".env", ".env:1"), (f"s/{JSON}", f"secret file s/{JSON}"), (f"s/{JSON.lower()}", "secret file")],
)
@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("{", "OCQ-107", "holds broken JSON"),
        ("[]", "OCQ-107", "holds no JSON object"),
        ('{"spark": {"mastr": "hunter2"}}', "OCQ-103", "there is no setting spark.mastr"),
    ],
)
def test_json_in_other_sources_of_variables_is_checked_like_that_of_the_environment(
    project, name, where, text, code, said
):
    error = project.write(name, f"{JSON}={text}" if name == ".env" else text).error(
        overrides=["config.import=optional:s"]
    )
    assert error.code == code
    assert said in error.what
    assert error.where.startswith(where)
    assert "hunter2" not in str(error)


@pytest.mark.parametrize(
    "environ",
    [
        {"OPENCQRS__PROFILES__ACTIVE": "one, two"},
        {"OPENCQRS_PROFILES_ACTIVE": '["one", "two"]'},
        {"OPENCQRS__PROFILES__ACTIVE__0": "one", "OPENCQRS__PROFILES__ACTIVE__1": "two"},
        {"OPENCQRS_PROFILES_ACTIVE_1": "two", "OPENCQRS_PROFILES_ACTIVE_0": "one"},
        {"OPENCQRS_APPLICATION_JSON": '{"profiles": {"active": ["one", "two"]}}'},
    ],
)
def test_a_list_in_variables_is_comma_separated_json_or_numbered(project, environ):
    assert project.load(environ=environ).profiles == ("one", "two")


def test_a_list_is_replaced_as_a_whole(project):
    project.yaml("opencqrs: {profiles: {active: [a, b, c]}}")
    configuration = project.load(environ={"OPENCQRS__PROFILES__ACTIVE__0": "z"})
    assert configuration.profiles == ("z",)
    assert configuration.settings.profiles.active == ["z"]


def test_a_gap_in_a_numbered_list_is_an_error(project):
    (error,) = project.errors(
        environ={"OPENCQRS__CONFIG__IMPORT__0": "optional:a", "OPENCQRS__CONFIG__IMPORT__2": "optional:c"}
    )
    assert error.what == "the items of config.import have the numbers 0, 2"
    assert error.fix == "number the items from 0 to 1"


@pytest.mark.parametrize("empty", ["", "  "])
def test_an_empty_variable_counts_as_unset(project, empty):
    project.yaml(BOOKS)
    books = project.load(environ={f"{PREFIX}BOOKS__LIFE_CYCLE__PARTITIONS": empty}).group("books")
    assert books.life_cycle.partitions == 2


def test_an_empty_unknown_variable_is_still_an_error(project):
    assert project.error(environ={"OPENCQRS__NOTHING": ""}).code == "OCQ-104"


@pytest.mark.parametrize(
    "given",
    [
        {"environ": {f"{PREFIX}BOOKS__FETCH__SUBJECT": "null"}},
        {"overrides": ["event-handling.groups.books.fetch.subject=null"]},
        {"environ": {"OPENCQRS_APPLICATION_JSON": '{"event-handling.groups.books.fetch.subject": null}'}},
    ],
)
def test_null_resets_a_value_from_any_source(project, given):
    project.yaml(BOOKS.replace("groups:", "standard: {fetch: {subject: /standard}}\n        groups:"))
    assert project.load().group("books").fetch.subject == "/from-file"
    assert project.load(**given).group("books").fetch.subject == "/"


def test_two_names_of_one_variable_that_disagree_are_an_error(project):
    upper, lower = f"{PREFIX}BOOKS__FETCH__SUBJECT", f"{PREFIX}BOOKS__FETCH__SUBJECT".lower()
    error = project.error(environ={upper: "/a", lower: "/b"})
    assert error.code == "OCQ-106"
    assert error.where == f"environment variable {upper} and environment variable {lower}"
    assert project.load(environ={upper: "/a", lower: "/a"}).group("books").fetch.subject == "/a"


def test_a_variable_that_could_mean_two_groups_is_an_error_that_names_both(project):
    error = project.error(environ={f"{PREFIX}V1_2__FETCH__SUBJECT": "/x"}, groups=["v1.2", "v12"])
    assert error.code == "OCQ-105"
    assert "event-handling.groups[v1.2].fetch.subject or event-handling.groups.v12.fetch.subject" in error.what


def test_json_for_an_ambiguous_name_is_an_error_until_one_reading_is_known(project):
    environ = {"OPENCQRS_EVENTHANDLING_GROUPS_BOOKS_RETRY": '{"policy": "fixed"}'}
    error = project.error(environ=environ)
    assert "event-handling.groups.books.retry or event-handling.groups.books_retry" in error.what
    assert project.load(environ=environ, groups=["books"]).group("books").retry.policy == "fixed"


@pytest.mark.parametrize(
    "override",
    [
        "event-handling.groups.books.fetch.subject=/x",
        "opencqrs.event-handling.groups.books.fetch.subject=/x",
        "opencqrs.eventHandling.groups.BOOKS.fetch.subject=/x",
        "event_handling.groups[books].fetch.subject=/x",
        ' event-handling.groups.books={"fetch": {"subject": "/x"}}',
    ],
)
def test_an_argument_overrides_a_setting_of_a_group(project, override):
    project.yaml(BOOKS)
    books = project.load(overrides=[override]).group("books")
    assert (books.fetch.subject, books.life_cycle.partitions) == ("/x", 2)


def test_two_files_merge_deeply(project):
    project.yaml(BOOKS).write(
        "config/application.yaml", "opencqrs: {eventHandling: {groups: {Books: {lifeCycle: {partitions: 4}}}}}"
    )
    books = project.load().group("books")
    assert (books.fetch.subject, books.life_cycle.partitions) == ("/from-file", 4)


def test_the_documents_of_a_file_merge_deeply(project):
    project.yaml(f"""{BOOKS}
---
opencqrs: {{event_handling: {{groups: {{books: {{life_cycle: {{partitions: 4}}}}}}}}}}
""")
    books = project.load().group("books")
    assert (books.fetch.subject, books.life_cycle.partitions) == ("/from-file", 4)


def test_a_placeholder_in_flow_style_needs_quotes_and_the_error_says_so(project):
    error = project.yaml("opencqrs: {spark: {master: ${MASTER:local}}}").error()
    assert (error.code, error.where) == ("OCQ-101", "application.yaml:1:29")
    assert error.fix == "put the text with ${…} in quotes"
    project.yaml("opencqrs: {spark: {master: '${MASTER:local}'}}")
    assert project.load().settings.spark.master == "local"
    assert project.load(environ={"MASTER": "yarn"}).settings.spark.master == "yarn"


@pytest.mark.parametrize(
    "yaml",
    [
        "opencqrs.event-handling.groups.books.fetch.subject: /x",
        "opencqrs: {event-handling.groups: {books.fetch: {subject: /x}}}",
        "opencqrs: {event-handling: {groups: {books.fetch.subject: /x}}}",
        "opencqrs: {event-handling: {'groups[books]': {fetch: {subject: /x}}}}",
    ],
)
def test_dotted_keys_are_keys(project, yaml):
    assert project.yaml(yaml).load().group("books").fetch.subject == "/x"


@pytest.mark.parametrize(
    ("yaml", "where", "said"),
    [
        (
            "opencqrs:\n  spark: {master: a}\n  spark: {master: b}",
            "application.yaml:3:3",
            "the key spark appears twice",
        ),
        ("opencqrs:\n  spark: {master: a, master: b}", "application.yaml:2:22", "the key master appears twice"),
        (
            "opencqrs:\n  spark: {master: a}\n  spark.master: b",
            "application.yaml:2:19 and application.yaml:3:17",
            "spark.master is set twice",
        ),
        (
            "opencqrs:\n  event-handling: {standard.fetch.recursive: no}\n  eventHandling.standard.fetch.recursive: no",
            "application.yaml:2:46 and application.yaml:3:43",
            "event-handling.standard.fetch.recursive is set twice",
        ),
        (
            "opencqrs:\n  event-handling:\n    groups: {book-catalog: {fetch.recursive: true}, BookCatalog: {}}",
            "application.yaml:3:53",
            "book-catalog and BookCatalog are two spellings of one name",
        ),
    ],
)
def test_a_duplicate_key_in_one_document_is_an_error(project, yaml, where, said):
    error = project.yaml(yaml).error()
    assert (error.code, error.where) == ("OCQ-106", where)
    assert said in error.what


@pytest.mark.parametrize("name", ["no", "yes", "on", "2024", "1e3", "0x10", "2024-01-01", "true", "1:30", "~", "null"])
def test_group_names_are_texts_whatever_type_yaml_gives_them(project, name):
    project.yaml(f"opencqrs:\n  event-handling:\n    groups:\n      {name}: {{fetch: {{subject: /x}}}}")
    assert project.load().group_names == (name,)
    assert project.load().group(name).fetch.subject == "/x"


@pytest.mark.parametrize(
    ("text", "value"),
    [("on", True), ("off", False), ("yes", True), ("no", False), ("True", True), ("'false'", False), ("1", True)],
)
def test_yes_and_no_are_accepted_for_booleans(project, text, value):
    project.yaml(f"opencqrs.event-handling.standard.fetch.recursive: {text}")
    assert project.load().group("any").fetch.recursive is value


@pytest.mark.parametrize("text", ["017", "1:30", "2024-01-01", "1e3", "on", "0x10", "'null'"])
def test_texts_are_kept_as_written(project, text):
    project.yaml(f"opencqrs.spark.conf: {{some.key: {text}}}")
    assert project.load().settings.spark.conf == {"some.key": text.strip("'")}


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("017", "write 17"),
        ("00", "write 0"),
        ("1:30", "write digits only, like 4"),
        ("1e3", "write digits only, like 4"),
        ("2.0", "write digits only, like 4"),
        ("0x10", "write digits only, like 4"),
        ("four", "write digits only, like 4"),
        ("true", "write digits only, like 4"),
        ("''", "write digits only, like 4"),
        ("0", "write 1 or more"),
        ("-1", "write 1 or more"),
    ],
)
def test_a_value_that_is_not_an_integer_is_refused(project, text, fix):
    error = project.yaml(f"opencqrs.event-handling.standard.life-cycle.partitions: {text}").error()
    assert error.fix == fix
    assert error.where == "application.yaml:1:57"


@pytest.mark.parametrize(
    "yaml",
    [
        "opencqrs: {event-handling: {groups: {books: }}}",
        "opencqrs:\n  event-handling:\n    groups:\n      books:\n",
        "opencqrs: {event-handling: {groups: {books: {}}}}",
        "opencqrs: {event-handling: {groups: {books: ~}}}",
        "opencqrs: {event-handling: {groups: {books: {fetch: , retry: {}}}}}",
    ],
)
def test_a_group_without_settings_has_the_defaults(project, yaml):
    configuration = project.yaml(yaml).load()
    assert configuration.group_names == ("books",)
    assert configuration.group("books").fetch.subject == "/"


def test_a_key_without_a_value_is_null(project):
    project.yaml("opencqrs: {profiles: {active: }, event-handling.standard.fetch: {subject: , recursive: no}}")
    configuration = project.load(defaults={"event-handling.standard.fetch.subject": "/code"})
    assert configuration.group("any").fetch.subject == "/"
    assert configuration.settings.profiles.active == []


@pytest.mark.parametrize(
    "yaml",
    [
        "",
        "\n",
        "# only a comment\n",
        "---\n---\n",
        "~",
        "opencqrs:",
        "opencqrs: {event-handling: {groups: }}",
        "\ufeffopencqrs: {}",
    ],
)
def test_an_empty_file_and_empty_sections_change_nothing(project, yaml):
    configuration = project.yaml(yaml).load()
    assert configuration.group_names == ()
    assert configuration.files == (project.folder / "application.yaml",)


@pytest.mark.parametrize(("yaml", "code"), [("- a\n- b", "OCQ-107"), ("some text", "OCQ-107"), ("3", "OCQ-107")])
def test_a_file_without_keys_is_an_error(project, yaml, code):
    error = project.yaml(yaml).error()
    assert (error.code, error.what, error.where) == (code, "the file holds no keys", "application.yaml:1:1")


@pytest.mark.parametrize(
    ("yaml", "where", "fix"),
    [
        ("opencqrs:\n  spark: {master: [}\n", "application.yaml:2:20", "check indentation, colons and quotes there"),
        ("opencqrs:\n\tspark: {}\n", "application.yaml:2:1", "indent with spaces, not with tabs"),
        ("opencqrs:\n  spark: 'open\n", "application.yaml:3:1", "check indentation, colons and quotes there"),
        ("a: b\x00", "application.yaml:1", "remove the character"),
        ("a: 1\nb: !secret x", "application.yaml:2:4", "remove the tag, or put the text in quotes"),
        ("a: *nowhere", "application.yaml:1:4", "check indentation, colons and quotes there"),
        (b"a: 1\nb: \xe4", "application.yaml:2", "save it as UTF-8"),
    ],
)
def test_a_file_with_a_syntax_error_is_reported_with_its_place(project, yaml, where, fix):
    error = project.write("application.yaml", yaml).error()
    assert (error.code, error.where, error.fix) == ("OCQ-101", where, fix)


@pytest.mark.parametrize(
    ("merged", "said"),
    [
        ("shared", "<< is followed by the text shared, not by a section"),
        ("'*shared'", "<< is followed by the text *shared, not by a section"),
        ("[*shared, other]", "<< is followed by the text other, not by a section"),
        ("[[*shared]]", "<< is followed by a list, not by a section"),
    ],
)
def test_a_yaml_merge_of_something_other_than_a_section_is_an_error(project, merged, said):
    yaml = f"shared: &shared {{max-attempts: 3}}\nopencqrs.event-handling.standard.retry:\n  <<: {merged}\n"
    error = project.yaml(yaml).error()
    assert (error.code, error.what, error.where.partition(":")[2][:2]) == ("OCQ-107", said, "3:")


@pytest.mark.parametrize("merged", ["*shared", "*nothing", "[*nothing, *shared]", "", "~"])
def test_a_yaml_merge_takes_over_sections_even_empty_ones(project, merged):
    yaml = "shared: &shared {max-attempts: 3}\nnothing: &nothing\n"
    yaml += f"opencqrs.event-handling.standard.retry:\n  <<: {merged}\n  policy: fixed\n"
    standard = project.yaml(yaml).load().settings.event_handling.standard
    assert standard.retry.max_attempts == (3 if "shared" in merged else None)


def test_without_any_file_all_values_are_built_in(project):
    configuration = project.load()
    assert configuration.files == ()
    assert all(value.is_default for value in configuration.values("books"))


SECRET = "hunter2"


@pytest.mark.parametrize(
    "given",
    [
        {"environ": {"OPENCQRS__DATABASE__URL": f"u:{SECRET}@host/db"}},
        {"environ": {"OPENCQRS__DATABASE__URL": f"://u:{SECRET}@host/db"}},
        {"environ": {"OPENCQRS__DATABASE": f'{{"url": "{SECRET}"'}},
        {"environ": {"OPENCQRS__DATABASE": SECRET}},
        {"environ": {"OPENCQRS__DATABSE__URL": SECRET}},
        {"environ": {"OPENCQRS_APPLICATION_JSON": f'{{"database": {{"url": "{SECRET}"}}'}},
        {"environ": {"OPENCQRS__DATABASE__URL": f"postgresql://u:{SECRET}@h/d", "opencqrs__database__url": SECRET}},
        {"environ": {"OPENCQRS__EVENT_HANDLING__STANDARD__LIFE_CYCLE__PARTITIONS": "${PASSWORD}", "PASSWORD": SECRET}},
        {"environ": {"OPENCQRS__EVENT_HANDLING__STANDARD__FETCH__SUBJECT": "${PASSWORD}", "PASSWORD": SECRET}},
        {
            "environ": {
                "OPENCQRS__EVENT_HANDLING__STANDARD__RETRY__MAX_INTERVAL": "${PASSWORD}",
                "PASSWORD": f"2 {SECRET}",
            }
        },
        {"environ": {"OPENCQRS__SPARK__MASTER": "${a.${PASSWORD}}", "PASSWORD": SECRET}},
        {"overrides": [f"database.url={SECRET}"]},
        {"overrides": [f"databse.url={SECRET}"]},
        {"defaults": {"database": {"url": SECRET}}},
    ],
)
def test_no_secret_is_shown_in_an_error(project, given):
    (error,) = project.errors(**given)
    assert SECRET not in str(error)
    assert SECRET not in repr(error)
    assert error.__context__ is None or SECRET not in repr(error.__context__)


def test_no_secret_is_shown_by_values_or_by_the_settings_themselves(project):
    configuration = project.yaml(f"""
        opencqrs:
          database: {{url: "postgresql://u:{SECRET}@host/db"}}
          event-store: {{url: "https://host?token={SECRET}"}}
          spark: {{conf: {{spark.ssl.keyPassword: {SECRET}}}}}
    """).load()
    assert SECRET not in str(configuration.values())
    assert SECRET not in repr(configuration)
    assert SECRET not in str(configuration.settings)
    assert configuration.settings.spark.conf == {"spark.ssl.keyPassword": SECRET}


def test_an_empty_json_object_in_a_variable_makes_a_group_with_the_defaults(project):
    configuration = project.load(environ={f"{PREFIX}BOOKS": "{}"})
    assert configuration.group_names == ("books",)
    assert configuration.group("books").fetch.subject == "/"


# What plain pydantic makes of these: an error, or another length (``10:00`` is 10 h quoted and 10 min unquoted).
DURATIONS = [
    ("PT10S", 10),
    ("PT0.5S", 0.5),
    ("PT1M30S", 90),
    ("P1DT2H", 93_600),
    ("2s", 2),
    ("500ms", 0.5),
    ("1m30s", 90),
    ("10 s", 10),
    ("P1W", 604_800),
    ("3d", 259_200),
    ("1 day", 86_400),
    ("pt10s", 10),
]
NO_DURATIONS = [
    ("2", "the unit is missing", "write 2s for seconds, 2ms for milliseconds, or PT2S in ISO-8601"),
    ("2.5", "the unit is missing", "write 2.5s for seconds, 2.5ms for milliseconds, or PT2.5S in ISO-8601"),
    ("P1M", None, None),
    ("P1Y", None, None),
    ("true", None, None),
    ("never", None, None),
    ("00:00:02", "a clock time is not a duration", None),
    ("10:00", "a clock time is not a duration", None),
    ("02:00", "a clock time is not a duration", None),
]
INFINITE = ["infinite", "inf", "∞", ".inf", "unlimited"]
WAIT = "event-handling.standard.retry.{}"


def ways_to_say(text, leaf):
    """Return the sources that say ``text`` for a duration: YAML plain and quoted, properties, variable, argument."""
    key = WAIT.format(leaf)
    return {
        "plain": {"application.yaml": f"opencqrs.{key}: {text}"},
        "quoted": {"application.yaml": f"opencqrs.{key}: '{text}'"},
        "properties": {"application.properties": f"opencqrs.{key}={text}"},
        "variable": {"environ": {f"OPENCQRS__EVENT_HANDLING__STANDARD__RETRY__{leaf.upper().replace('-', '_')}": text}},
        "argument": {"overrides": [f"{key}={text}"]},
    }


def said(project, way):
    for name in [name for name in way if name.startswith("application")]:
        project.write(name, way[name])
    return {name: value for name, value in way.items() if not name.startswith("application")}


WAYS = pytest.mark.parametrize("way", ["plain", "quoted", "properties", "variable", "argument"])


@WAYS
@pytest.mark.parametrize(("text", "seconds"), DURATIONS)
def test_a_duration_has_the_same_value_in_every_source(project, way, text, seconds):
    given = said(project, ways_to_say(text, "initial-interval")[way])
    assert project.load(**given).group("any").retry.initial_interval == seconds


@WAYS
@pytest.mark.parametrize(("text", "reason", "fix"), NO_DURATIONS)
def test_an_ambiguous_duration_is_refused_in_every_source(project, way, text, reason, fix):
    error = project.error(**said(project, ways_to_say(text, "initial-interval")[way]))
    assert error.code == "OCQ-113"
    assert error.what.startswith(f"event-handling.standard.retry.initial-interval cannot be '{text}': {reason or ''}")
    assert error.fix == fix or (fix is None and error.fix)


@WAYS
@pytest.mark.parametrize("text", INFINITE)
def test_no_limit_can_be_written_in_words_if_a_setting_allows_none(project, way, text):
    way_for = ways_to_say(text, "max-elapsed-time")
    assert project.load(**said(project, way_for[way])).group("any").retry.max_elapsed_time == float("inf")


def test_every_invalid_duration_is_reported_with_the_correct_form(project):
    seen = {text: str(project.error(overrides=[f"{WAIT.format('max-interval')}={text}"])) for text, *_ in NO_DURATIONS}
    assert "put a T before minutes" in seen["P1M"]
    assert "months and years" in seen["P1Y"]
    for text in ("never", "true"):
        assert "write it like 2s, 500ms, 1m30s or PT10S" in seen[text]
