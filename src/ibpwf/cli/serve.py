"""`ibpwf serve`: models that predict and learn over HTTP."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ibpwf.cli.options import OnDevice
from ibpwf.cli.output import say
from ibpwf.cli.parsing import argument, option
from ibpwf.errors import InputError, printable


@dataclass(kw_only=True)
class Serve(OnDevice):
    """Serve a model folder, or all models in a folder, over HTTP: the Open Inference Protocol and a web page.

    Every version of a model can predict, and the next task is learned while the server predicts. Without --tokens,
    the server binds to localhost only.
    """

    path: Path = argument("MODELS", "A model folder, or a folder of them.", check="ibpwf.data.opening:check_there")
    host: str = option("127.0.0.1", "The address to bind to.", metavar="ADDRESS")
    port: int = option(8000, "The port; 0 picks a free one.", least=0, most=65535)
    tokens: Path | None = option(None, "Token file. Without it, the server binds to localhost only.", metavar="FILE")
    new_token: str | None = option(None, "Add a token to the token file, print it once, and end.", metavar="NAME")
    role: Literal["predict", "learn", "admin"] = option("predict", "The role of the new token.")
    read_only: bool = option(False, "Reject every request that changes a model.")
    certificate: Path | None = option(None, "TLS certificate (PEM).", metavar="FILE")
    key: Path | None = option(None, "TLS private key (PEM).", metavar="FILE")
    limit: tuple[str, ...] = option((), "Change a limit, such as rows=1000.", metavar="NAME=NUMBER")
    access_log: str | None = option(None, "Log requests as JSON lines; - for stdout.", metavar="FILE")
    drain_seconds: float = option(
        5.0, "On SIGTERM, keep answering for N seconds after readiness turns off.", metavar="N", least=0, most=3600
    )
    no_batching: bool = option(False, "Process one request at a time.")

    def run(self) -> None:
        if self.new_token is not None:
            self._add_token(self.new_token)
            return
        if not self.path.is_dir():
            raise InputError(f"{self.path} is a file; give a model folder, or a folder of them.")
        for name in ("fastapi", "uvicorn", "prometheus_client", "jinja2"):
            if importlib.util.find_spec(name) is None:
                raise InputError(f"serving needs {name}; run pip install 'ibpwf[serve]'.")
        from ibpwf.data.opening import check_there
        from ibpwf.serving.limits import Limits
        from ibpwf.serving.server import Place, check_certificate, check_place, serve

        place, limits = Place(self.host, self.port, self.certificate, self.key), Limits.of(list(self.limit))
        check_place(place, self.tokens)  # before seconds are spent on importing torch
        for file in (self.certificate, self.key, self.tokens):
            if file is not None:
                check_there(file)
        check_certificate(place)
        from ibpwf.serving.service import ServeOptions

        options = ServeOptions(
            self.path, self.tokens, self.read_only, limits, batching=not self.no_batching, access_log=self.access_log
        )
        serve(replace(options, device=self.device, drain=self.drain_seconds), place, started)

    def _add_token(self, name: str) -> None:
        if self.tokens is None:
            raise InputError("--new-token needs the token file; give --tokens FILE.")
        from ibpwf.serving.access import add_token

        token = add_token(self.tokens, name, self.role)
        say(f"Token '{printable(name)}' ({self.role}), shown only now: {token}", err=True)


def started(address: str, service: Any) -> None:
    models = ", ".join(f"{model.name} (version {model.newest.number})" for model in service.registry)
    say(f"Serving {printable(models)} at {address}, on {service.device}")
    for name, why in service.registry.faults.items():
        say(f"Not served: {printable(name)}: {printable(why)}", err=True)
    if service.access.is_open:
        say("No tokens: every user of this machine can change the models (see --tokens).")
