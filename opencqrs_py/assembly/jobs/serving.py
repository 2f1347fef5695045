"""Jobs over HTTP: ``/jobs`` lists them, ``/jobs/NAME/runs`` their runs, and a ``POST`` there requests one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import unquote

from opencqrs_py.assembly.answers import json_answer, why_unavailable
from opencqrs_py.assembly.jobs.jobs import Jobs, JobStatus
from opencqrs_py.assembly.jobs.rows import job_row, run_row, run_rows
from opencqrs_py.errors import JobError, KeyReusedError, UnknownJobError
from opencqrs_py.model.job import Trigger
from opencqrs_py.model.masking import scrubbed
from opencqrs_py.processing.exceptions import plain_text
from opencqrs_py.web.cached_queries import CachedQuery
from opencqrs_py.web.errands import Errands
from opencqrs_py.web.run_requests import RequestRefusedError, require_token, run_request
from opencqrs_py.web.server import Answer, Branch, Request, text_answer

T = TypeVar("T")

JOBS_PATH = "/jobs"
_PATIENCE = 4.0  # seconds that a request waits for the database: less than a request may take
_MOST_RUNS = 100
_MOST_SAID = 1_000  # characters


class JobsBranch(Branch):
    """Serves jobs to clients that have the token.

    Args:
        jobs: Returns the jobs of the application.
        look: The last status of all jobs.
        token: Token that a request must have; ``None``: requests are refused.
    """

    def __init__(self, jobs: Callable[[], Jobs], look: CachedQuery[list[JobStatus]], token: str | None) -> None:
        self._jobs = jobs
        self._look = look
        self._token = token
        self._errands = Errands("opencqrs-asked")

    def start(self) -> None:
        """Start the thread that queries the database."""
        self._errands.start()

    def stop(self, patience: float) -> None:
        """Stop, and wait for calls in progress, for at most ``patience`` seconds a thread."""
        self._errands.stop(patience)

    def methods(self, path: str) -> Sequence[str]:
        """Return the methods of a path, without ``HEAD``; none if it is not a path of jobs."""
        match path.split("/"):
            case ["", "jobs"]:
                return ("GET",)
            case ["", "jobs", name, "runs"] if name:
                return ("GET", "POST")
            case _:
                return ()

    def answer(self, request: Request) -> Answer:
        """Return the answer to a request."""
        try:
            require_token(request, self._token)
            if request.query:
                what = "no parameters are read from the address; ids belong in the body"
                return text_answer(HTTPStatus.BAD_REQUEST, what)
            return self._answer(request)
        except RequestRefusedError as refused:
            return refused.answer
        except UnknownJobError as error:
            return text_answer(HTTPStatus.NOT_FOUND, _line_of(error))
        except KeyReusedError as error:
            return text_answer(HTTPStatus.UNPROCESSABLE_ENTITY, _line_of(error))
        except Exception as error:
            reason = why_unavailable(error, _PATIENCE)
            if reason is None:
                raise
            return _unavailable(reason, asks=request.method == "POST")

    def _answer(self, request: Request) -> Answer:
        if request.path == JOBS_PATH:
            return json_answer([job_row(status) for status in self._look.get(_PATIENCE)])
        name = unquote(request.path.split("/")[2])
        if request.method == "GET":
            return self._errands.do(lambda: self._runs_of(name), _PATIENCE)
        asked = run_request(request)

        def ask() -> Answer:
            jobs = self._jobs()
            run = jobs.request(name, asked.ids or None, by="http", trigger=Trigger.HTTP, key=asked.key)
            return json_answer(run_row(run, jobs.now), HTTPStatus.ACCEPTED)

        return self._errands.do(ask, _PATIENCE)

    def _runs_of(self, name: str) -> Answer:
        jobs = self._jobs()
        return json_answer(run_rows(jobs.runs(name, _MOST_RUNS), jobs.now))


def _line_of(error: JobError) -> str:
    line = scrubbed(plain_text(f"{error.what}; {error.fix}", _MOST_SAID))
    return " ".join(line.split())


def _unavailable(reason: str, *, asks: bool) -> Answer:
    more = "; the run may be recorded nevertheless, so send it again with the same Idempotency-Key" if asks else ""
    return text_answer(HTTPStatus.SERVICE_UNAVAILABLE, f"unavailable: {reason}{more}", Retry_After="1")
