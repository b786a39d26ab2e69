"""Every address of the server: what it does and who may."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ibpwf import __version__
from ibpwf.data.opening import quoted
from ibpwf.errors import IBPWFError
from ibpwf.serving import inference_routes as ask
from ibpwf.serving import learning_routes as learn
from ibpwf.serving import page_routes as page
from ibpwf.serving.access import Caller, Role
from ibpwf.serving.faults import FAULT, FULL, Refused, bad, is_disk_full
from ibpwf.serving.middleware import Gateway, refusal
from ibpwf.serving.records import log
from ibpwf.serving.registry import NoSuchModel
from ibpwf.serving.schemas import of_route, query_names
from ibpwf.serving.service import Service, token_of

Handler = Callable[[Service, Request, Caller], Awaitable[Response]]


@dataclass(frozen=True)
class Route:
    """An address. `doing` is what it is called in a refusal. One that is not `limited` has no rate limit: an
    orchestrator would restart a server whose health checks are rejected."""

    method: str
    path: str
    role: Role
    handler: Handler
    doing: str
    limited: bool = True


MODEL, VERSION = "/v2/models/{model}", "/v2/models/{model}/versions/{version}"

ROUTES = (
    Route("GET", "/v2/health/live", Role.anyone, ask.live, "checking health", limited=False),
    Route("GET", "/v2/health/ready", Role.anyone, ask.ready, "checking health", limited=False),
    Route("GET", "/v2", Role.predict, ask.server_metadata, "reading metadata"),
    Route("POST", "/v2/repository/index", Role.predict, ask.index, "listing models"),
    Route("GET", MODEL, Role.predict, ask.model_metadata, "reading metadata"),
    Route("GET", VERSION, Role.predict, ask.model_metadata, "reading metadata"),
    Route("GET", f"{MODEL}/ready", Role.predict, ask.model_ready, "checking health", limited=False),
    Route("GET", f"{VERSION}/ready", Role.predict, ask.model_ready, "checking health", limited=False),
    Route("POST", f"{MODEL}/infer", Role.predict, ask.infer, "predicting"),
    Route("POST", f"{VERSION}/infer", Role.predict, ask.infer, "predicting"),
    Route("GET", f"{MODEL}/tasks", Role.predict, ask.tasks, "listing tasks"),
    Route("POST", f"{MODEL}/predict", Role.predict, ask.predict_file, "predicting"),
    Route("POST", f"{MODEL}/compare", Role.predict, ask.compare, "comparing versions"),
    Route("GET", "/metrics", Role.predict, ask.metrics, "reading metrics"),
    Route("POST", f"{MODEL}/tasks", Role.learn, learn.learn, "training"),
    Route("GET", "/v2/jobs", Role.learn, learn.list_jobs, "reading jobs"),
    Route("GET", "/v2/jobs/{job}", Role.learn, learn.show_job, "reading jobs"),
    Route("GET", "/v2/jobs/{job}/events", Role.learn, learn.job_events, "reading jobs"),
    Route("DELETE", "/v2/jobs/{job}", Role.learn, learn.cancel_job, "canceling a job"),
    Route("POST", f"{MODEL}/forget", Role.admin, learn.forget, "deleting a task"),
    Route("POST", f"{MODEL}/verify", Role.admin, learn.verify, "verifying a model"),
    Route("POST", f"{MODEL}/export", Role.admin, learn.export_model, "exporting a model"),
    Route("GET", "/", Role.anyone, page.index, "reading metadata"),
    Route("GET", "/models/{model}", Role.anyone, page.model, "reading metadata"),
    Route("POST", "/login", Role.anyone, page.login, "signing in"),
    Route("POST", "/logout", Role.anyone, page.logout, "signing out"),
    Route("GET", "/static/{name}", Role.anyone, page.static, "fetching the page's files"),
)


def make_app(service: Service) -> ASGIApp:
    """The server as an application. Pages ask for a token themselves."""
    app = FastAPI(
        title="ibpwf",
        version=__version__,
        summary="Models that learn task after task, every version of them.",
        lifespan=lambda _: service.running(),
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,
    )
    for route in ROUTES:
        app.add_api_route(
            route.path,
            _endpoint(service, route),
            methods=[route.method],
            name=f"{route.method} {route.path}",
            response_model=None,
            openapi_extra=of_route(route.method, route.path),
        )
    app.add_exception_handler(HTTPException, _told)
    return Gateway(InferRoute(app, service), service)


class InferRoute:
    """Answers inference requests ahead of the framework, whose routing and dependencies take longer than the answer.
    The checks are those of every route, and all other requests go on."""

    _PATH = re.compile(r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?/infer")

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        endpoints = {route.path: _endpoint(service, route) for route in ROUTES if route.handler is ask.infer}
        self._newest, self._version = endpoints[f"{MODEL}/infer"], endpoints[f"{VERSION}/infer"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        found = self._PATH.fullmatch(scope["path"]) if is_post else None
        if found is None:
            await self._app(scope, receive, send)
            return
        scope["path_params"] = {name: value for name, value in found.groupdict().items() if value is not None}
        endpoint = self._version if "version" in scope["path_params"] else self._newest
        response = await endpoint(Request(scope, receive, send))
        await response(scope, receive, send)


async def _told(request: Request, error: Exception) -> Response:
    """What the framework itself refuses: a path, or a method, that there is not."""
    assert isinstance(error, HTTPException)
    why = {404: "there is no such address", 405: "this address does not take that method"}
    text = why.get(error.status_code, str(error.detail))
    return JSONResponse(
        {"error": f"{text}; /openapi.json lists what there is."}, error.status_code, headers=error.headers
    )


def _endpoint(service: Service, route: Route) -> Callable[[Request], Awaitable[Response]]:
    seconds = service.metrics.request_seconds.labels(route.path)
    counts: dict[int, Any] = {}  # looked up once: a label's lookup takes longer than counting

    async def endpoint(request: Request) -> Response:
        began = time.perf_counter()
        response = await _answered(service, route, request)
        status = response.status_code
        if status not in counts:
            counts[status] = service.metrics.requests_total.labels(route.path, status)
        counts[status].inc()
        seconds.observe(time.perf_counter() - began)
        return response

    return endpoint


class NotSent(Response):
    """To a client that is gone; the access log has no status for it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pass


async def _answered(service: Service, route: Route, request: Request) -> Response:
    """A route's answer; whatever goes wrong is a status and one sentence."""
    try:
        caller = service.caller(request)
        who = caller.name if not service.access.is_open and caller.role else _address(request)
        request.scope["ibpwf.caller"] = caller.name
        if route.limited:
            service.rate.check(who)
        _check_origin(request)
        _check_role(service, route, request, caller)
        _check_query(route, request)
        return await route.handler(service, request, caller)
    except Refused as error:
        return refusal(error)
    except NoSuchModel as error:
        return JSONResponse({"error": str(error)}, 404)
    except ClientDisconnect:
        return NotSent(status_code=400)
    except asyncio.CancelledError:  # the server ends, and could not wait for this one
        return JSONResponse({"error": "the server is being stopped; ask again."}, 503, headers={"Retry-After": "5"})
    except Exception as error:
        if is_disk_full(error):
            service.trouble.note("disk", f"the disk is full: {error}")
            return refusal(Refused(507, FULL))
        if isinstance(error, IBPWFError):
            return JSONResponse({"error": _without_paths(service, str(error))}, 400)
        log.exception("%s %s", route.method, route.path)
        return JSONResponse({"error": FAULT}, 500)


def _address(request: Request) -> str:
    return "nobody" if request.client is None else request.client.host


def _without_paths(service: Service, text: str) -> str:
    """A message without where the models lie."""
    for model in service.registry:
        text = model.plain(text)
    return text


def _check_query(route: Route, request: Request) -> None:
    """Refuse a parameter that there is not: in silence a mistyped version would be answered by the newest."""
    if not request.scope["query_string"] or not route.path.startswith("/v2"):
        return
    known = query_names(route.method, route.path)
    strange = next((name for name in request.query_params if name not in known), None)
    if strange is not None:
        there = f"there are {', '.join(sorted(known))}" if known else "this address takes none"
        raise bad(f"there is no parameter {quoted(strange)}; {there}.")


def _check_role(service: Service, route: Route, request: Request, caller: Caller) -> None:
    """Reject a caller without the role. A wrong token is logged, also where none is needed."""
    if caller.role is Role.anyone and token_of(request):
        service.note_denied(request, "unknown")
    elif caller.role < route.role:
        service.note_denied(request, "role" if caller.role else "missing")
    service.access.check(caller, route.role, route.doing)


def _check_origin(request: Request) -> None:
    """Reject what a page of another site makes a browser send."""
    origin = request.headers.get("origin")
    if origin is None or request.method in ("GET", "HEAD"):
        return
    try:
        site = urlsplit(origin).netloc
    except ValueError:  # it is no address
        site = ""
    if not site or site != request.headers.get("host", ""):
        raise Refused(403, "the request comes from a page of another site; ask from this server's own.")
