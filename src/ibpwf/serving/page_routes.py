"""The page: models, their versions and tasks, rendered here; a little script asks, teaches and compares."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from ibpwf import __version__
from ibpwf.errors import InputError
from ibpwf.serving.access import Caller, Role
from ibpwf.serving.faults import Refused
from ibpwf.serving.inference_routes import describe_tasks
from ibpwf.serving.jobs import FINISHED
from ibpwf.serving.protocol import version_number
from ibpwf.serving.registry import NoSuchModel
from ibpwf.serving.service import Service
from ibpwf.serving.uploads import receive_bytes

HERE = Path(__file__).with_name("page")
FILES = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}
COOKIE = "ibpwf-token"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with none at all browsers hide whose page a form is of, and it is refused
    "Cache-Control": "no-store",
}


@functools.lru_cache
def _templates() -> Any:
    try:
        import jinja2
    except ImportError:
        raise InputError("the page needs Jinja; run pip install 'ibpwf[serve]'.") from None
    return jinja2.Environment(loader=jinja2.FileSystemLoader(HERE), autoescape=True, trim_blocks=True)


def _rendered(name: str, service: Service, caller: Caller, status: int = 200, **values: Any) -> Response:
    text = (
        _templates()
        .get_template(name)
        .render(
            caller=caller,
            Role=Role,
            is_open=service.access.is_open,
            program=f"ibpwf {__version__}",
            **values,
        )
    )
    return HTMLResponse(text, status, headers=HEADERS)


async def index(service: Service, request: Request, caller: Caller) -> Response:
    if caller.role < Role.predict:
        return _rendered("login.html", service, caller, 401, wrong=False)
    models = [
        {
            "name": one.name,
            "tasks": one.newest.tasks,
            "versions": one.versions,
            "classes": len(one.newest.classifier.classes_),
        }
        for one in service.registry
    ]
    faults, problems = service.registry.faults, service.registry.problems
    return _rendered("index.html", service, caller, models=models, faults=faults, problems=problems)


async def model(service: Service, request: Request, caller: Caller) -> Response:
    if caller.role < Role.predict:
        return _rendered("login.html", service, caller, 401, wrong=False)
    try:
        served = service.model(request)
        version = await service.version(served, version_number(request.query_params.get("version")))
    except (NoSuchModel, Refused) as error:
        status = error.status if isinstance(error, Refused) else 404
        return _rendered("missing.html", service, caller, status, problem=str(error))
    jobs = (await service.jobs.known(served))[::-1]
    layout = version.layout
    return _rendered(
        "model.html",
        service,
        caller,
        model=served,
        read_only=service.read_only(served),
        version=version,
        tasks=describe_tasks(version),
        pictures=[_picture(task) for task in describe_tasks(version)],
        jobs=jobs[:10],
        running=[job.id for job in jobs if job.state not in FINISHED],
        kind=None if layout is None else layout.kind,
        columns=() if layout is None else layout.columns,
    )


def _picture(task: dict[str, Any]) -> dict[str, int]:
    """Factors that a task shares with earlier ones, and those that are new, of all layers together."""
    uses = task["factors"].values()
    return {name: sum(use[name] for use in uses) for name in ("reused", "new", "total")}


async def login(service: Service, request: Request, caller: Caller) -> Response:
    """Keep a token in a cookie that no script reads and no other site sends."""
    body = await receive_bytes(request.stream(), 4096, service.limits.seconds)
    token = parse_qs(body.decode("ascii", "replace")).get("token", [""])[0].strip()
    if service.access.caller(token).role is Role.anyone:
        service.note_denied(request, "unknown" if token else "missing")
        return _rendered("login.html", service, caller, 401, wrong=True)
    response = RedirectResponse("/", 303)
    proxied = request.headers.get("x-forwarded-proto", "")  # believed in this alone: it only makes a cookie stricter
    secure = "https" in (request.url.scheme, proxied)
    response.set_cookie(COOKIE, token, httponly=True, samesite="strict", secure=secure, path="/")
    return response


async def logout(service: Service, request: Request, caller: Caller) -> Response:
    response = RedirectResponse("/", 303)
    response.delete_cookie(COOKIE, path="/")
    return response


async def static(service: Service, request: Request, caller: Caller) -> Response:
    name = request.path_params["name"]
    if name not in FILES:
        raise Refused(404, "there is no such file; the page has a style, a script and an icon.")
    return Response(_file(name), media_type=FILES[name], headers={"X-Content-Type-Options": "nosniff"})


@functools.lru_cache
def _file(name: str) -> bytes:
    return (HERE / name).read_bytes()
