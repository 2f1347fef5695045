"""The services of the how-to pages under their real servers: they handle events, share, and stop in time."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.zygote import Zygote

DOCS = Path(__file__).parents[2] / "docs" / "how-to"
LOOKS = 20_000  # more than any machine needs; each is a request
THREAD = {"OPENCQRS__EVENT_HANDLING__STANDARD__PROCESSING__ENGINE": "thread"}
_BLOCK = re.compile(r"^```\w+ title=\"(?P<title>[^\"]+)\"\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
HANGING = """
from opencqrs_py import event_handling


@event_handling("lending", types=["library.*"])
def hang(event: dict) -> None:
    print("in hand", flush=True)
    while True:
        pass
"""

DJANGO_SETTINGS = """
from pathlib import Path

SECRET_KEY = "for tests"
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "site_of_library.urls"
WSGI_APPLICATION = "site_of_library.wsgi.application"
INSTALLED_APPS = ["library"]
USE_TZ = True
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": Path(__file__).parents[1] / "library.db"}
}
"""
DJANGO_URLS = """
from django.urls import path
from library import views

urlpatterns = [path("lent", views.lent), path("health", views.health)]
"""


class Service:
    """A project that is written from a page, and its server."""

    def __init__(self, folder: Path, zygote: Zygote) -> None:
        self.folder = folder
        self.url = ""
        self.processes: list[subprocess.Popen[str]] = []
        self._zygote = zygote

    def write(self, page: str, **files: str) -> None:
        shown = {m["title"]: m["text"] for m in _BLOCK.finditer((DOCS / page).read_text("utf-8"))}
        for name, text in {**shown, **files}.items():
            path = self.folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)

    def serve(self, listening: str, *command: str) -> subprocess.Popen[str]:
        """Start a server and wait until it says where it listens."""
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", *command],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.processes.append(process)
        said = self.output_until(process, listening)
        (self.url,) = re.findall(r"http://127\.0\.0\.1:\d+", said)
        return process

    def output_until(self, process: subprocess.Popen[str], word: str) -> str:
        """Return the line of a process that has a word."""
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if word in line:
                return line
        pytest.fail("".join(said))

    def opencqrs(self, *arguments: str) -> Any:
        return self._zygote.opencqrs(self.folder, arguments, THREAD)

    def import_events(self, *isbns: str) -> None:
        lines = (
            json.dumps(
                {"id": f"{n} {isbn}", "source": "s", "type": "library.book-lent.v1", "subject": f"/{isbn}"} | data
            )
            for n, isbn in enumerate(isbns)
            for data in [{"data": {"isbn": isbn}}]
        )
        (self.folder / "events.ndjson").write_text("\n".join(lines))
        imported = self.opencqrs("events", "import", "events.ndjson")
        assert imported.code == 0, imported.err

    def post(self, path: str) -> tuple[int, Any]:
        return self.get(path, b"")

    def get(self, path: str, data: bytes | None = None) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(self.url + path, data, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        for _ in range(LOOKS):
            if condition():
                return
        pytest.fail("it was never so")

    def nodes(self) -> list[int]:
        """Return how many partitions each node has that lives."""
        nodes = self.opencqrs("nodes", "--format", "json").json
        return [sum(g["partitions"] for g in node["groups"].values()) for node in nodes if node["state"] == "alive"]

    def states(self) -> set[tuple[str, Any]]:
        statuses = self.opencqrs("status", "--format", "json").json
        return {(each["state"], each["owner"]) for status in statuses for each in status["partitions"]}


@pytest.fixture
def service(tmp_path: Path, zygote: Zygote) -> Iterator[Service]:
    made = Service(tmp_path, zygote)
    yield made
    for process in made.processes:
        process.kill()
        process.communicate()


# ------------------------------------------------------------------------------------------------------- FastAPI

UVICORN = ("uvicorn", "main:app", "--port", "0", "--no-access-log")
RUNNING = "Uvicorn running on"


def test_fastapi_handles_events_while_it_serves_and_stops_cleanly(service):
    service.write("fastapi.md")
    process = service.serve(RUNNING, *UVICORN)
    service.import_events("1", "2", "1")
    service.wait_until(lambda: service.get("/lag") == (200, {"lending": 0}) and service.nodes() == [4])
    service.wait_until(lambda: service.get("/health") == (200, []))
    assert service.get("/live") == (200, "alive")
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=300)
    assert "Application shutdown complete." in out
    assert "Traceback" not in out
    assert service.nodes() == []
    assert service.states() == {("stopped", None)}


@pytest.mark.parametrize(
    ("overrides", "what"),
    [((), "imported"), (("--set", "discovery.modules=shop.handlers"), "passed over")],
    ids=["found", "named"],
)
def test_commands_import_the_service_of_fastapi_unless_the_modules_are_named(service, overrides, what):
    service.write("fastapi.md")
    ran = service.opencqrs("conditions", *overrides)
    assert f"discovery main.py = {what}" in ran.out
    assert "handlers = 1: in the order" in ran.out


@pytest.mark.release
def test_workers_of_uvicorn_share_the_partitions(service):
    service.write("fastapi.md")
    process = service.serve(RUNNING, *UVICORN, "--workers", "2")
    service.wait_until(lambda: service.nodes() == [2, 2])
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=300)
    assert service.nodes() == []


@pytest.mark.release
def test_fastapi_reports_an_unhealthy_group(service):
    service.write("fastapi.md", **{"shop/handlers.py": FAILING})
    service.serve(RUNNING, *UVICORN)
    service.import_events("1")
    service.wait_until(lambda: service.get("/health")[0] == 503)
    (line,) = service.get("/health")[1]
    assert "failed" in line


FAILING = (
    HANGING.replace("while True:\n        pass", "raise ValueError('never')")
    .replace("from opencqrs_py import event_handling", "from opencqrs_py import NonTransientError, event_handling")
    .replace("ValueError", "NonTransientError")
)


@pytest.mark.release  # integration/test_embedding.py
def test_fastapi_ends_although_a_handler_never_returns(service):
    service.write("fastapi.md", **{"shop/handlers.py": HANGING})
    process = service.serve(RUNNING, *UVICORN)
    service.import_events("1")
    service.output_until(process, "in hand")
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=300)
    assert "Application shutdown complete." in out


@pytest.mark.release
def test_fastapi_does_not_serve_if_the_application_cannot_start(service):
    service.write(
        "fastapi.md", **{"application.yaml": "opencqrs.event-handling.groups.lending.progress.tracker-ref: nobody\n"}
    )
    done = subprocess.run(
        [sys.executable, "-m", *UVICORN], cwd=service.folder, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 3
    assert "[OCQ-502]" in done.stderr
    assert "Application startup failed" in done.stderr


@pytest.mark.release
def test_a_request_reads_its_own_writes_handled_by_another_process(service):
    service.write("read-your-writes.md")
    with (service.folder / "run.log").open("w") as log:
        command = [sys.executable, "-m", "opencqrs_py", "run"]
        service.processes.append(subprocess.Popen(command, cwd=service.folder, stdout=log, stderr=log))
    service.wait_until(lambda: service.nodes() == [1])
    service.serve(RUNNING, *UVICORN)
    answers = [service.post(f"/lendings/{isbn}") for isbn in ("1", "2", "1", "1")]
    assert answers == [(200, {"times": times}) for times in (1, 1, 2, 3)]
    service.processes[0].kill()
    service.wait_until(lambda: service.nodes() == [])
    code, said = service.post("/lendings/1")
    assert code == 202
    assert "the process that ran it has ended" in said["detail"]


def test_the_test_shown_on_the_page_passes(service):
    service.write("read-your-writes.md")
    test = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_lending.py"]
    ran = subprocess.run(test, cwd=service.folder, capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 0, ran.stdout


# -------------------------------------------------------------------------------------------------------- Django

GUNICORN = ("gunicorn", "site_of_library.wsgi", "--bind", "127.0.0.1:0")
LISTENING = "Listening at"


def write_django(service: Service, **files: str) -> None:
    settings = {"site_of_library/settings.py": DJANGO_SETTINGS, "site_of_library/urls.py": DJANGO_URLS}
    service.write("django.md", **settings, **files)


def test_django_handles_events_under_gunicorn_and_stops_cleanly(service):
    write_django(service)
    process = service.serve(LISTENING, *GUNICORN)
    service.import_events("1", "2", "1")
    service.wait_until(lambda: service.get("/lent") == (200, {"1": 2, "2": 1}))
    service.wait_until(lambda: service.get("/health") == (200, {"lines": []}))
    assert service.nodes() == [4]
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert "Traceback" not in out
    assert service.nodes() == []
    assert service.states() == {("stopped", None)}


def test_commands_find_the_handlers_of_django_without_its_server(service):
    write_django(service)
    service.import_events("1")
    for command in ("conditions", "run --until-caught-up", "groups reset lending --to tail"):
        ran = service.opencqrs(*command.split())
        assert (ran.code, ran.err.count("OCQ-")) == (0, 0), ran.err


@pytest.mark.release
def test_gunicorn_workers_share_the_partitions_and_a_lost_one_is_replaced(service):
    write_django(service)
    service.serve(LISTENING, *GUNICORN, "--workers", "2")
    service.wait_until(lambda: service.nodes() == [2, 2])
    nodes = service.opencqrs("nodes", "--format", "json").json
    victim = int(nodes[0]["node"].rpartition(":")[2])
    subprocess.run(["kill", "-9", str(victim)], check=True)
    service.wait_until(lambda: service.nodes() == [2, 2] and victim not in living(service))


def living(service: Service) -> set[int]:
    nodes = service.opencqrs("nodes", "--format", "json").json
    return {int(node["node"].rpartition(":")[2]) for node in nodes if node["state"] == "alive"}


@pytest.mark.release
def test_with_preload_the_parent_of_the_workers_keeps_the_partitions_when_one_ends(service):
    write_django(service)
    process = service.serve(LISTENING, *GUNICORN, "--preload")
    assert living(service) == {process.pid}
    process.send_signal(signal.SIGHUP)  # the worker ends, and another one starts
    service.output_until(process, "Booting worker")
    service.output_until(process, "Booting worker")
    service.import_events("7")
    service.wait_until(lambda: service.get("/lent") == (200, {"7": 1}))
    assert (living(service), service.nodes()) == ({process.pid}, [4])


@pytest.mark.release
def test_django_handles_events_under_runserver_and_not_in_other_commands(service):
    write_django(service)
    settings = ("--settings", "site_of_library.settings")
    checked = subprocess.run(
        [sys.executable, "-m", "django", "check", *settings, "--pythonpath", "."],
        cwd=service.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
    assert service.nodes() == []
    server = ("django", "runserver", "127.0.0.1:0", "--noreload", *settings, "--pythonpath", ".")
    process = service.serve("Starting development server at", *server)
    service.wait_until(lambda: service.nodes() == [4])
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert service.nodes() == []


@pytest.mark.release
def test_a_worker_of_gunicorn_ends_although_a_handler_never_returns(service):
    write_django(service, **{"library/handlers.py": HANGING})
    process = service.serve(LISTENING, *GUNICORN)
    service.import_events("1")
    service.output_until(process, "in hand")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=300)
    assert process.returncode == 0
