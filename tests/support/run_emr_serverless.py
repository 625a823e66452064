"""Runs moto's EMR Serverless over HTTP: ``python run_emr_serverless.py PORT``, with what moto 5.2 lacks.

moto keeps applications and runs; but it takes every start for a new run, whatever its token; calls a run ended as soon
as it is started, and created at midnight; and answers 404 to a listing of no runs. Here, as the service's API reference
has it, a token that was used before gets the run that it started (or a ConflictException, if the request was another
one), a run is SUBMITTED until a test says otherwise, and no runs are an empty list. A test reads and changes runs, and
makes listings lag behind, by requests to ``/test/...``: they are no part of the service.
"""

from __future__ import annotations

import json
import sys
import threading
from datetime import timedelta
from typing import Any

from moto.core.exceptions import JsonRESTError
from moto.core.utils import utcnow
from moto.emrserverless import models
from moto.emrserverless.models import EMRServerlessBackend, JobRun, emrserverless_backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
from werkzeug.wrappers import Request, Response

ACCOUNT, REGION = "123456789012", "us-east-1"
_lock = threading.Lock()
_requests: dict[str, dict[str, Any]] = {}
"""What each run was started with, by its id."""
_hidden: set[str] = set()
"""Runs that no listing shows yet."""


class ConflictError(JsonRESTError):
    code = 409

    def __init__(self) -> None:
        super().__init__("ConflictException", "The token was used before, with another request")


_start, _list = EMRServerlessBackend.start_job_run, EMRServerlessBackend.list_job_runs


def start_job_run(self: EMRServerlessBackend, **request: Any) -> JobRun:
    with _lock:
        for run in self.job_runs.get(request["application_id"], []):
            if run.client_token == request["client_token"]:
                if _requests[run.id] != request:
                    raise ConflictError
                return run
        run = _start(self, **request)
        run.state, run.created_at, run.updated_at, run.state_details = "SUBMITTED", utcnow(), utcnow(), ""
        _requests[run.id] = request
        return run


def list_job_runs(self: EMRServerlessBackend, application_id: str, **filters: Any) -> list[JobRun]:
    with _lock:
        self.get_application(application_id)
        self.job_runs.setdefault(application_id, [])
        found = _list(self, application_id, **{**filters, "created_at_after": None, "created_at_before": None})
        return [run for run in found if run.id not in _hidden]


def told(path: str, body: Any) -> Any:
    """Answers a test: all runs with what they were started with; a run's new state; what listings do not show;
    runs made older."""
    backend = emrserverless_backends[ACCOUNT][REGION]
    with _lock:
        runs = {run.id: run for of_one in backend.job_runs.values() for run in of_one}
        if path == "state":
            run = runs[body["id"]]
            run.state, run.updated_at = body["state"], utcnow()
        elif path == "backdate":
            for run in runs.values():
                run.created_at -= timedelta(seconds=body["seconds"])
        elif path == "hide":
            _hidden.clear()
            _hidden.update(body["ids"])
        return [{"id": run.id, "state": run.state, "request": _requests[run.id]} for run in runs.values()]


EMRServerlessBackend.start_job_run = start_job_run  # type: ignore[method-assign,assignment]
EMRServerlessBackend.list_job_runs = list_job_runs  # type: ignore[method-assign,assignment]
models.JOB_STATUS = "SUBMITTED"
_service = DomainDispatcherApplication(create_backend_app)


def application(environ: Any, start_response: Any) -> Any:
    request = Request(environ)
    if request.path.startswith("/test/"):
        answer = told(request.path.removeprefix("/test/"), json.loads(request.get_data() or b"null"))
        return Response(json.dumps(answer), mimetype="application/json")(environ, start_response)
    return _service(environ, start_response)


if __name__ == "__main__":
    run_simple("127.0.0.1", int(sys.argv[1]), application, threaded=True)
