"""`ibpwf serve`: models answered, and taught, over HTTP."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ibpwf.cli import reading as own
from ibpwf.cli.output import say
from ibpwf.data.opening import check_there
from ibpwf.device import check_device
from ibpwf.errors import InputError, printable


def serve_command(
    path: Annotated[Path, typer.Argument(metavar="MODELS", help="A model folder, or a folder of them.")],
    host: Annotated[str, typer.Option("--host", help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="The port; 0: any that is free.")] = 8000,
    tokens: Annotated[
        Path | None,
        typer.Option("--tokens", metavar="FILE", help="Who may do what; without it this machine alone may."),
    ] = None,
    new_token: Annotated[
        str | None,
        typer.Option("--new-token", metavar="NAME", help="Add a token to the file, print it once, and end."),
    ] = None,
    role: Annotated[str, typer.Option("--role", help="Of the new token: predict, learn or admin.")] = "predict",
    read_only: Annotated[bool, typer.Option("--read-only", help="Answer, and change nothing.")] = False,
    certificate: Annotated[
        Path | None, typer.Option("--certificate", metavar="FILE", help="For TLS: the certificate, PEM.")
    ] = None,
    key: Annotated[Path | None, typer.Option("--key", metavar="FILE", help="For TLS: its key, PEM.")] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option("--limit", metavar="NAME=NUMBER", help="A limit, such as rows=1000. Repeatable."),
    ] = None,
    access_log: Annotated[
        str | None,
        typer.Option("--access-log", metavar="FILE", help="Log requests as JSON lines; - for standard output."),
    ] = None,
    device: own.Device = "auto",
    drain_seconds: Annotated[
        float,
        typer.Option(
            "--drain-seconds", metavar="N", help="On SIGTERM, answer for N seconds more after readiness drops."
        ),
    ] = 5.0,
    no_batching: Annotated[bool, typer.Option("--no-batching", help="Answer one request at a time.")] = False,
) -> None:
    """Serve a model folder, or all in a folder, over HTTP: the Open Inference Protocol and a page.

    Every version of a model can be asked, and the next task is learnt while the server answers. Without --tokens it
    can be reached from this machine alone.
    """
    if new_token is not None:
        _add_token(tokens, new_token, role)
        return
    check_device(device)
    if not 0 <= drain_seconds <= 3600:
        raise InputError(f"--drain-seconds is {drain_seconds:g}; give a number from 0 to 3600.")
    check_there(path)
    if not path.is_dir():
        raise InputError(
            f"{printable(str(path))} is a file; give a model folder, made with ibpwf learn, or a folder of them."
        )
    for name in ("fastapi", "uvicorn", "prometheus_client", "jinja2"):
        _need(name)
    from ibpwf.serving.limits import Limits
    from ibpwf.serving.server import Place, check_certificate, check_place, serve

    place, limits = Place(host, port, certificate, key), Limits.of(limit or [])
    check_place(place, tokens)  # before seconds are spent on importing torch
    for file in (certificate, key, tokens):
        if file is not None:
            check_there(file)
    check_certificate(place)
    from ibpwf.serving.service import ServeOptions

    options = ServeOptions(path, tokens, read_only, limits, batching=not no_batching, access_log=access_log)
    serve(replace(options, device=device, drain=drain_seconds), place, _started)


def _add_token(tokens: Path | None, name: str, role: str) -> None:
    if tokens is None:
        raise InputError("--new-token needs a file to note it in; give --tokens FILE.")
    from ibpwf.serving.access import add_token

    token = add_token(tokens, name, role)
    say(f"Token of '{printable(name)}' ({role}), shown this once: {token}", err=True)


def _need(name: str) -> None:
    import importlib.util

    if importlib.util.find_spec(name) is None:
        raise InputError(f"serving needs {name}; run pip install 'ibpwf[serve]'.")


def _started(address: str, service: Any) -> None:
    models = ", ".join(f"{model.name} (version {model.newest.number})" for model in service.registry)
    say(f"Serving {printable(models)} at {address}, on {service.device}")
    for name, why in service.registry.faults.items():
        say(f"Not served: {printable(name)}: {printable(why)}", err=True)
    if service.access.is_open:
        say("No tokens: only this machine can reach it, and whoever can may change the models (see --tokens).")
