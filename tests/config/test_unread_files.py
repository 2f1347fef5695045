import pytest

SETTINGS = "opencqrs.spark.master: local[1]\n"
UNREAD = [
    ("aplication.yaml", "application.yaml"),
    ("applicaton.yml", "application.yml"),
    ("Application.yaml", "application.yaml"),
    ("application.YAML", "application.yaml"),
    ("application.ymal", "application.yml"),
    ("application.yml.txt", "application.yml"),
    ("application.toml.TXT", "application.toml"),
    ("application.property", "application.properties"),
    ("application.json", "application.yaml"),
    ("opencqrs.yaml", "application.yaml"),
    ("config/aplication.yaml", "application.yaml"),
]
OF_PROD = ["application_prod.yaml", "application.prod.yaml", "Application-prod.yaml", "application-prod.yml.txt"]


@pytest.mark.parametrize(("name", "right"), UNREAD)
def test_a_start_without_a_settings_file_names_the_one_it_ignored(project, name, right):
    (warning,) = project.write(name, SETTINGS).load().warnings
    assert warning.code == "OCQ-125"
    assert warning.what == f"{name.removeprefix('config/')} is not read: files of settings have other names"
    assert (warning.where, warning.fix) == (name, f"rename it to {right}")


@pytest.mark.parametrize("name", OF_PROD)
@pytest.mark.parametrize("has_base", [True, False])
def test_the_ignored_file_of_an_active_profile_is_named(project, name, has_base):
    if has_base:
        project.yaml(SETTINGS)
    (warning,) = project.write(name, SETTINGS).load(profiles=["prod"]).warnings
    assert warning.code == "OCQ-125"
    assert warning.fix.startswith("rename it to application-prod.y")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("aplication.yaml", "spring.application.name: other"),
        ("app.yaml", SETTINGS),
        ("docker-compose.yaml", SETTINGS),
        ("application.py", "import opencqrs_py"),
        ("application.log", "opencqrs run"),
        ("application.yaml.bak", SETTINGS),
        ("application.example.yaml", SETTINGS),
        ("application_sample.yml", SETTINGS),
        ("application_prod.yaml", SETTINGS),
        ("applications/aplication.yaml", SETTINGS),
        ("aplication.yaml/file", SETTINGS),
        ("application.yaml", SETTINGS),
        ("application-prod.yaml", SETTINGS),
    ],
)
def test_an_unrelated_file_is_not_mentioned(project, name, text):
    assert project.write(name, text).load().warnings == ()


@pytest.mark.parametrize(("name", "right"), UNREAD)
def test_a_misplaced_file_is_not_mentioned_if_the_right_one_exists(project, name, right):
    assert project.write("application.properties", "a=b").write(name, SETTINGS).load().warnings == ()


def test_an_imported_file_is_not_mentioned(project):
    project.write("opencqrs.yaml", SETTINGS)
    assert project.load(overrides=["config.import=opencqrs.yaml"]).warnings == ()


def test_a_misplaced_profile_file_is_not_mentioned_if_the_right_one_exists(project):
    project.write("application-prod.yaml", SETTINGS).write("application_prod.yaml", SETTINGS)
    assert project.load(profiles=["prod"]).warnings == ()
