"""Models to serve, made once, and servers that end with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

for needed in ("fastapi", "uvicorn", "prometheus_client", "httpx"):
    pytest.importorskip(needed)

from served import Server, fresh_folder, make_models  # noqa: E402


@pytest.fixture(scope="session")
def made_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`things` and `pictures`. Read them only."""
    return make_models(tmp_path_factory.mktemp("served"))


@pytest.fixture
def models(made_models: Path, tmp_path: Path) -> Path:
    """A copy of them."""
    return fresh_folder(made_models, tmp_path)


@pytest.fixture(scope="session")
def server(made_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that tests ask and do not change."""
    models = fresh_folder(made_models, tmp_path_factory.mktemp("asked"))
    running = Server(models)
    yield running
    told = running.stop()
    assert "Traceback" not in told, told


@pytest.fixture
def start(models: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers of the copied models."""
    running: list[Server] = []

    def begin(*words: str, **options: Any) -> Server:
        running.append(Server(models, *words, **options))
        return running[-1]

    yield begin
    for one in running:
        one.kill()
