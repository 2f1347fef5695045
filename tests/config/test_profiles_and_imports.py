import pytest

MASTER = "opencqrs.spark.master"

DOCUMENTS = """
opencqrs.spark.master: all
---
opencqrs:
  config.activate.on-profile: prod
  spark.master: prod
---
opencqrs:
  config: {on-profile: "test and not (eu or us)"}
  spark.master: test-elsewhere
---
opencqrs:
  config.on-profile: [eu, us]
  spark.conf: {region: somewhere}
---
opencqrs:
  config.on-profile: default
  spark.master: nobody
"""


@pytest.mark.parametrize(
    ("profiles", "master", "conf"),
    [
        ((), "nobody", {}),
        (("prod",), "prod", {}),
        (("test",), "test-elsewhere", {}),
        (("test", "eu"), "all", {"region": "somewhere"}),
        (("prod", "us"), "prod", {"region": "somewhere"}),
        (("prod", "test"), "test-elsewhere", {}),
    ],
)
def test_documents_apply_with_their_profiles(project, profiles, master, conf):
    spark = project.yaml(DOCUMENTS).load(profiles=profiles).settings.spark
    assert (spark.master, spark.conf) == (master, conf)


def test_documents_of_properties_apply_with_their_profiles(project):
    project.write(
        "application.properties",
        f"""
        {MASTER}=all
        #---
        opencqrs.config.activate.on-profile=prod
        {MASTER}=prod
        """,
    )
    assert project.load().settings.spark.master == "all"
    assert project.load(profiles=["prod"]).settings.spark.master == "prod"


@pytest.mark.parametrize(
    "given",
    [
        {"profiles": ["a", "b"]},
        {"environ": {"OPENCQRS__PROFILES__ACTIVE": "a,b"}},
        {"environ": {"OPENCQRS_PROFILES_ACTIVE": "${FIRST:a},b"}},
        {"overrides": ["profiles.active=a,b"]},
        {"defaults": {"profiles": {"active": ["a", "b"]}}},
        {"profiles": ["a", "b"], "environ": {"OPENCQRS__PROFILES__ACTIVE": "c"}},
        {"overrides": ["profiles.active=a,b"], "environ": {"OPENCQRS__PROFILES__ACTIVE": "c"}},
        {"profiles": ["a", "b", "a"]},
    ],
)
def test_the_last_profile_wins_wherever_they_are_chosen(project, given):
    for name in "abc":
        project.write(f"application-{name}.yaml", f"{MASTER}: {name}")
    configuration = project.load(**given)
    assert configuration.profiles == ("a", "b")
    assert configuration.settings.spark.master == "b"
    assert [file.name for file in configuration.files] == ["application-a.yaml", "application-b.yaml"]


def test_a_higher_source_overrides_the_profiles_chosen_by_a_file(project):
    project.yaml("opencqrs.profiles.active: [a]").write("application-a.yaml", f"{MASTER}: a")
    project.write("application-b.yaml", f"{MASTER}: b").write(".env", "ALSO=b")
    assert project.load().settings.spark.master == "a"
    assert project.load(environ={"OPENCQRS_PROFILES_ACTIVE": "${also}"}).settings.spark.master == "b"
    project.write("config/application.properties", "opencqrs.profiles.active[0]=b")
    assert project.load().settings.spark.master == "b"


def test_without_a_profile_the_profile_default_applies(project):
    project.write("application-default.yaml", f"{MASTER}: default").write("application-a.yaml", "{}")
    assert project.load().settings.spark.master == "default"
    assert project.load().profiles == ()
    assert project.load(profiles=["a"]).settings.spark.master == "local[*]"


@pytest.mark.parametrize(
    ("files", "given", "code", "said"),
    [
        ({}, {"profiles": ["a b"]}, "OCQ-109", "'a b' cannot be the name of a profile"),
        ({}, {"environ": {"OPENCQRS_PROFILES_ACTIVE": "not"}}, "OCQ-109", "'not' cannot be the name of a profile"),
        (
            {},
            {"environ": {"OPENCQRS_PROFILES_ACTIVE": "${x}"}},
            "OCQ-108",
            "profiles.active cannot be resolved: there is no value for ${x}",
        ),
        (
            {"application-a.yaml": "opencqrs.profiles.active: b"},
            {"profiles": ["a"]},
            "OCQ-109",
            "profiles are chosen in a file or document that itself depends on a profile",
        ),
        (
            {"application.yaml": "opencqrs: {config.on-profile: a, profiles.active: b}"},
            {"profiles": ["a"]},
            "OCQ-109",
            "profiles are chosen in a file or document that itself depends on a profile",
        ),
        (
            {"application.yaml": "opencqrs: {config.on-profile: a and}"},
            {},
            "OCQ-109",
            "on-profile cannot be read: a name is missing",
        ),
        (
            {},
            {"environ": {"OPENCQRS__CONFIG__ON_PROFILE": "a"}},
            "OCQ-109",
            "config.on-profile is outside of a file",
        ),
        ({}, {"overrides": ["config.activate.on-profile=a"]}, "OCQ-109", "config.activate.on-profile is outside"),
    ],
)
def test_invalid_profiles_are_errors(project, files, given, code, said):
    for name, text in files.items():
        project.write(name, text)
    errors = project.errors(**given)
    assert [error.code for error in errors] == [code] * len(errors)
    assert said in errors[0].what


@pytest.mark.parametrize(
    ("name", "fix"), [("prdo", "did you mean prod?"), ("qa", "create application-qa.yaml, or leave it out")]
)
def test_an_unknown_profile_is_warned_of(project, name, fix):
    project.yaml("opencqrs: {config.on-profile: prod}").write("application-test.yaml", "{}")
    (warning,) = project.load(profiles=["test", name]).warnings
    assert (warning.code, warning.fix) == ("OCQ-119", fix)
    assert warning.what == f"no file or document mentions the profile {name}"


def test_an_import_overrides_its_importer_and_later_imports_override_earlier_ones(project):
    project.yaml(
        "opencqrs: {config: {import: [one.yaml, more/two.toml]}, spark: {master: importer}}\n"
        "---\n"
        "opencqrs.spark.conf: {a: 3}"
    )
    project.write("one.yaml", f"{MASTER}: one\nopencqrs.spark.conf: {{a: 1, b: 1}}")
    project.write("more/two.toml", 'opencqrs.spark.conf = {b = "2"}\nopencqrs.config.import = "three.properties"')
    project.write("more/three.properties", "opencqrs.spark.conf.c=3")
    configuration = project.load()
    assert configuration.settings.spark.master == "one"
    assert configuration.settings.spark.conf == {"a": "3", "b": "2", "c": "3"}
    assert [file.name for file in configuration.files] == [
        "application.yaml",
        "one.yaml",
        "two.toml",
        "three.properties",
    ]
    assert str(configuration.origin("spark.conf.c")) == "more/three.properties:1:23"


def test_imported_files_have_profile_variants(project):
    project.yaml("opencqrs.config.import: extra.yaml").write("extra.yaml", f"{MASTER}: extra")
    project.write("extra-prod.yaml", f"{MASTER}: extra-prod")
    assert project.load().settings.spark.master == "extra"
    configuration = project.load(profiles=["prod"])
    assert configuration.settings.spark.master == "extra-prod"
    assert configuration.warnings == ()


def test_a_file_is_imported_once(project):
    project.yaml("opencqrs.config.import: a.yaml").write(
        "a.yaml", f"opencqrs.config.import: [b.yaml, a.yaml]\n{MASTER}: a"
    )
    project.write("b.yaml", f"opencqrs.config.import: a.yaml\n{MASTER}: b")
    assert project.load().settings.spark.master == "b"


@pytest.mark.parametrize(
    "given",
    [
        {"environ": {"OPENCQRS__CONFIG__IMPORT": "extra.yaml"}},
        {"environ": {"OPENCQRS_CONFIG_IMPORT_0": "${WHERE}.yaml", "WHERE": "extra"}},
        {"overrides": ["config.import=optional:nothing.yaml,extra.yaml"]},
        {"environ": {"OPENCQRS_APPLICATION_JSON": '{"config": {"import": ["file:extra.yaml"]}}'}},
    ],
)
def test_imports_by_variables_and_arguments_override_all_application_files(project, given):
    project.yaml(f"{MASTER}: file").write("extra.yaml", f"{MASTER}: extra")
    assert project.load(**given).settings.spark.master == "extra"


def test_an_import_can_be_an_absolute_path(project, tmp_path_factory):
    file = tmp_path_factory.mktemp("elsewhere") / "extra.yaml"
    file.write_text(f"{MASTER}: elsewhere")
    configuration = project.yaml(f"opencqrs.config.import: '{file}'").load()
    assert str(configuration.origin("spark.master")) == f"{file}:1:24"


@pytest.mark.parametrize(
    ("item", "what", "fix"),
    [
        ("extar.yaml", "the import extar.yaml does not exist", "did you mean extra.yaml?"),
        (
            "some/where.yaml",
            "the import some/where.yaml does not exist",
            "create it, or write optional:some/where.yaml",
        ),
    ],
)
def test_a_file_that_is_named_but_missing_is_an_error(project, item, what, fix):
    project.yaml(f"opencqrs.config.import: {item}").write("extra.yaml", "{}")
    error = project.error()
    assert (error.code, error.what, error.fix) == ("OCQ-102", what, fix)
    assert error.where == f"application.yaml:1:25 (looked for {item})"
    assert project.yaml(f"opencqrs.config.import: optional:{item}").load().files == (
        project.folder / "application.yaml",
    )


def test_an_import_that_cannot_be_resolved_or_read_is_an_error(project):
    project.yaml("opencqrs.config.import: ['${nothing}', notes.txt]").write("notes.txt", "")
    unreadable, unresolved = project.errors()
    assert unresolved.what == "config.import cannot be resolved: there is no value for ${nothing}"
    assert (unreadable.code, unreadable.what) == ("OCQ-101", ".txt is not a format of settings")
    assert unreadable.fix == "use one of .yaml, .yml, .toml, .properties"


def test_a_folder_in_place_of_a_file_is_an_error(project):
    project.write("application.yaml/x", "")
    error = project.error()
    assert (error.code, error.where) == ("OCQ-101", "application.yaml")


SECRETS = {
    "opencqrs.database.url": "postgresql://user:pass@host/db\n",
    "OPENCQRS__EVENT_STORE__URL": "sqlite:///secret.db",
    "opencqrs/spark/master": "secret",
    "opencqrs__event_handling__groups__books__progress__tracker_ref": "mine",
    "own/password": "hunter2",
    "..data/ignored": "x",
    ".hidden": "x",
}


@pytest.mark.parametrize("item", ["secrets", "secrets/", "optional:secrets/", "configtree:secrets"])
def test_a_folder_of_secrets_can_be_imported(project, item):
    for name, text in SECRETS.items():
        project.write(f"secrets/{name}", text)
    project.write("secrets/keystore", b"\xff\xfe")
    project.yaml(f"opencqrs: {{config.import: '{item}', spark: {{master: file, conf: {{p: 'x ${{own.password}}'}}}}}}")
    configuration = project.write(".env", "OPENCQRS__SPARK__MASTER=dotenv").load()
    assert configuration.settings.database.url == "postgresql://user:pass@host/db"
    assert configuration.settings.event_store.url == "sqlite:///secret.db"
    assert configuration.settings.spark.master == "secret"
    assert configuration.settings.spark.conf == {"p": "x hunter2"}
    assert configuration.group("books").progress.tracker_ref == "mine"
    shown = {value.path: value.value for value in configuration.values()}
    assert shown["database.url"] == shown["spark.master"] == shown["spark.conf.p"] == "***"
    assert shown["event-handling.groups.books.progress.tracker-ref"] == "***"
    assert str(configuration.origin("spark.master")) == "secret file secrets/opencqrs/spark/master"
    assert project.load(environ={"OPENCQRS__SPARK__MASTER": "environ"}).settings.spark.master == "environ"


def test_an_invalid_secret_is_named_and_not_shown(project):
    project.write("s/opencqrs.spark.master", b"\xff").write(
        "s/opencqrs.event-handling.standard.fetch.subject", "hunter2"
    )
    project.write("s/opencqrs.event-handling.standard.retry.policy", "fixd").write("s/opencqrs.spark.mastr", "x")
    unreadable, unknown, subject, policy = project.errors(overrides=["config.import=s"])
    assert unreadable.where == "secret file s/opencqrs.spark.master"
    assert unknown.fix == "did you mean spark.master?"
    assert "hunter2" not in str(subject)
    assert subject.fix == "put a / in front of it"
    assert "fixd" not in str(policy)
    assert policy.fix == "use one of none, fixed, exponential_backoff"


def test_the_shown_profiles_are_the_active_ones(project):
    configuration = project.load(profiles=["prod,eu", "prod"], environ={"OPENCQRS__PROFILES__ACTIVE": "dev"})
    assert configuration.profiles == ("prod", "eu")
    assert configuration.settings.profiles.active == ["prod", "eu"]
    shown = configuration.value("profiles.active")
    assert (shown.value, str(shown.origin)) == ("[prod, eu]", "argument --profile")
    (lost,) = configuration.losers("profiles.active")
    assert lost.value == "dev"


@pytest.mark.parametrize(
    ("files", "where"),
    [
        ({"application.yaml": "{stage: prod, opencqrs.profiles.active: '${stage:dev}'}"}, "application.yaml:1:41"),
        (
            {"application.yaml": "opencqrs.config.import: secrets", "secrets/opencqrs.profiles.active": "prod"},
            "secret file secrets/opencqrs.profiles.active",
        ),
    ],
)
def test_profiles_chosen_too_late_to_be_active_are_an_error(project, files, where):
    for name, text in files.items():
        project.write(name, text)
    error = project.error()
    assert (error.code, error.where) == ("OCQ-109", where)
    assert "profiles.active was read after the profiles were chosen; active: " in error.what


@pytest.mark.parametrize("said", ["[a, 'b,c']", "[a, b, c, a]", "a, b,c"])
def test_a_list_of_profiles_in_any_spelling_is_shown_as_active(project, said):
    configuration = project.yaml(f"opencqrs.profiles.active: {said}").load()
    assert configuration.profiles == ("a", "b", "c")
