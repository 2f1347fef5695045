"""A settings file that exists and cannot be read is never ignored."""

from __future__ import annotations

import os
import socket

import pytest


@pytest.fixture
def bound_by_modes(tmp_path):
    """Skip for a user with access to every file, such as root."""
    file = tmp_path / "closed"
    file.touch(mode=0)
    if os.access(file, os.R_OK):
        pytest.skip("this user can read every file")


@pytest.mark.parametrize("name", ["application.yaml", "config/application.toml", "application-prod.properties", ".env"])
def test_a_broken_link_is_an_error(project, name):
    link = project.folder / name
    link.parent.mkdir(exist_ok=True)
    link.symlink_to("..data/application.yaml")
    error = project.error(profiles=["prod"])
    assert (error.code, error.where) == ("OCQ-101", name)
    assert error.what == ("the file cannot be read: it is a link to ..data/application.yaml, which does not exist")
    assert error.fix == "put back the file, or check its name and permissions"


@pytest.mark.parametrize("item", ["shared.yaml", "optional:shared.yaml"])
def test_an_import_of_a_broken_link_is_an_error(project, item):
    (project.folder / "shared.yaml").symlink_to("gone.yaml")
    error = project.error(overrides=[f"config.import={item}"])
    assert (error.code, error.where) == ("OCQ-101", "shared.yaml")


def test_a_profile_variant_of_an_import_that_is_a_broken_link_is_an_error(project):
    project.write("shared.yaml", "{}")
    (project.folder / "shared-prod.yaml").symlink_to("gone.yaml")
    assert project.error(overrides=["config.import=shared.yaml"], profiles=["prod"]).where == "shared-prod.yaml"


def test_a_config_folder_that_is_a_broken_link_is_an_error(project):
    (project.folder / "config").symlink_to("gone")
    error = project.error()
    assert (error.where, error.what) == (
        "config",
        "the folder cannot be read: it is a link to gone, which does not exist",
    )


def test_a_circular_link_is_an_error(project):
    (project.folder / "application.yaml").symlink_to("application.yaml")
    assert project.error().what == f"the file cannot be read: {os.strerror(40)}"


def test_a_pipe_is_an_error_and_is_not_waited_for(project):
    os.mkfifo(project.folder / "application.yaml")
    assert project.error().what == "the file cannot be read: it is a pipe"


def test_a_device_is_an_error(project):
    (project.folder / "application.yaml").symlink_to("/dev/zero")
    assert project.error().what == "the file cannot be read: it is a device"


def test_a_socket_is_an_error(project, monkeypatch):
    monkeypatch.chdir(project.folder)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("application.yaml")
        assert project.error().what == "the file cannot be read: it is a socket"


@pytest.mark.parametrize("name", ["application.yaml", ".env"])
def test_a_folder_in_place_of_a_file_is_an_error(project, name):
    (project.folder / name).mkdir()
    error = project.error()
    assert (error.where, error.what) == (name, "the file cannot be read: it is a folder")


def test_a_virtual_environment_called_env_is_ignored(project):
    project.write(".env/pyvenv.cfg", "home = /usr/bin")
    assert project.load().files == ()


def test_a_pipe_among_secrets_is_an_error_and_is_not_waited_for(project):
    (project.folder / "secrets").mkdir()
    os.mkfifo(project.folder / "secrets" / "opencqrs.database.url")
    error = project.error(overrides=["config.import=secrets"])
    assert error.where == "secret file secrets/opencqrs.database.url"


@pytest.mark.usefixtures("bound_by_modes")
@pytest.mark.parametrize("name", ["application.yaml", "config", "secrets"])
def test_a_file_without_read_permission_is_an_error(project, name):
    project.write("application.yaml", "opencqrs.config.import: secrets").write("config/x", "").write("secrets/x", "")
    (project.folder / name).chmod(0)
    try:
        error = project.error()
    finally:
        (project.folder / name).chmod(0o700)
    assert (error.code, error.where) == ("OCQ-101", name)
    assert error.what.endswith("cannot be read: Permission denied")


def test_a_name_with_a_nul_character_is_a_missing_file(project):
    project.yaml('opencqrs.config.import: "a\\0b.yaml"')
    assert project.error().code == "OCQ-102"
