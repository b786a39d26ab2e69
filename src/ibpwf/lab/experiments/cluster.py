"""Workers on other machines: an engine that hands jobs to a Dask scheduler.

Dask runs what it is sent, for anybody who can reach its scheduler. So the way there is encrypted and both sides show
certificates (TLS), or it does not leave this machine, or it was asked for by name.
"""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import json
import logging
import secrets
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ibpwf.errors import DataError, InputError, TrainingError
from ibpwf.lab.experiments.executors import Job, Tell, interrupts_held_back, telling

SECONDS_TO_CONNECT = 20
GIVE = "give the address of a Dask scheduler, such as tls://host:8786, its scheduler file, or local:N"


@dataclass(frozen=True)
class Certificates:
    """Files by which this side and the scheduler know each other; None: what Dask's own configuration names."""

    ca_file: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def given(self) -> dict[str, str]:
        names = {"tls_ca_file": self.ca_file, "tls_client_cert": self.cert, "tls_client_key": self.key}
        return {name: str(path) for name, path in names.items() if path is not None}

    def check(self) -> None:
        for option, path in (("ca-file", self.ca_file), ("cert", self.cert), ("key", self.key)):
            if path is not None and not path.is_file():
                raise InputError(f"--tls-{option} is '{path}', where there is no file; give one in PEM form.")


@dataclass(frozen=True)
class Cluster:
    """A Dask scheduler by its address or its scheduler file, or `local:N`: N workers on this machine. Checked at
    once, without importing Dask."""

    address: str
    certificates: Certificates = Certificates()
    insecure: bool = False
    say: Callable[[str], None] = field(default=lambda text: None, compare=False)

    def __post_init__(self) -> None:
        self.certificates.check()
        if self.workers is None:
            self.scheduler()
        if importlib.util.find_spec("distributed") is None:
            raise InputError("--cluster needs Dask; run pip install 'ibpwf[cluster]'.")

    @property
    def workers(self) -> int | None:
        """How many to start here; None where a scheduler is there already."""
        kind, _, count = self.address.partition(":")
        if kind != "local":
            return None
        if not count.isdecimal() or int(count) < 1:
            raise InputError(f"--cluster is '{self.address}'; give a number of workers from 1, such as local:2.")
        return int(count)

    def scheduler(self) -> str:
        """The scheduler's address; refused where others could listen or take its place."""
        address = _from_file(self.address) if self.address.endswith(".json") else self.address
        asked = bool(self.certificates.given())
        if "://" not in address:
            address = f"{'tls' if asked else 'tcp'}://{address}"
        try:
            parts = urlsplit(address)
            scheme, host, port = parts.scheme, parts.hostname, parts.port
        except ValueError:
            scheme, host, port = "", None, None
        if scheme not in ("tls", "tcp") or not host or port is None:
            raise InputError(f"--cluster is '{self.address}'; {GIVE}.")
        if scheme == "tls":
            return address
        if asked:
            raise InputError(f"--cluster is '{address}', which is not encrypted; with --tls-... give tls://{host}.")
        if not self.insecure and not is_loopback(host):
            raise InputError(
                f"--cluster is '{address}', another machine without encryption: whoever can reach it, or the way to "
                "it, could run programs here and there. Start the scheduler with TLS and give tls://..., or add "
                "--cluster-insecure where the network is trusted."
            )
        return address

    def check(self) -> None:
        """A wrong address or certificate is found out before anything is read or written."""
        if self.workers is None:
            with contextlib.ExitStack() as held:
                held.enter_context(self._client(held))

    def explained(self, error: Exception) -> Exception:
        from distributed.scheduler import KilledWorker

        kept = "finished tasks are kept, the same command with --resume goes on."
        if isinstance(error, KilledWorker):
            return TrainingError(f"a task ended every worker that took it (out of memory?); {kept}")
        if isinstance(error, (CancelledError, OSError)):
            return TrainingError(f"the scheduler at {self.address} is gone, or has dropped the work; {kept}")
        return error

    @contextlib.contextmanager
    def open(self, told: Tell) -> Iterator[Executor]:
        """Jobs that run are told to stop when the block fails; Dask replaces a worker that is lost, and gives its job
        to another."""
        with contextlib.ExitStack() as held:
            client = held.enter_context(self._client(held))
            several = [address for address, threads in client.nthreads().items() if threads > 1]
            if several:
                raise InputError(
                    f"worker {several[0]} has several threads, and a training takes a process of its own; start "
                    "workers with --nthreads 1, and --nworkers for more of them."
                )
            count = len(client.nthreads())
            self.say(f"{self.address}: {count} worker{'s' * (count != 1)}" + (", waiting for one" * (not count)))
            topic = f"ibpwf-{secrets.token_hex(8)}"
            client.subscribe_topic(topic, lambda event: told(event[1]))
            executor = _Jobs(client, topic)
            try:
                yield executor
            except BaseException:
                executor.shutdown(wait=False)
                raise

    def _client(self, held: contextlib.ExitStack) -> Any:
        import distributed
        from distributed.security import Security

        if self.workers is not None:
            with interrupts_held_back():  # Ctrl-C is for this process
                cluster = held.enter_context(_local_cluster(self.workers))
            return distributed.Client(cluster, set_as_default=False)
        address = self.scheduler()
        security = Security(**self.certificates.given())
        if address.startswith("tls:") and not (security.tls_ca_file and security.tls_client_cert):
            raise InputError(
                f"--cluster is '{address}', and there are no certificates to show; add --tls-ca-file, --tls-cert and "
                "--tls-key, or set distributed.comm.tls in Dask's configuration."
            )
        try:
            return distributed.Client(address, security=security, timeout=SECONDS_TO_CONNECT, set_as_default=False)
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(
                f"no Dask scheduler answers at {address} ({reason}); check that it runs, and that its certificates "
                "are of the same authority."
            ) from error


def _from_file(path: str) -> str:
    """The address in a file that `dask scheduler --scheduler-file` has written."""
    try:
        return str(json.loads(Path(path).read_text())["address"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"--cluster is '{path}', which is no scheduler file ({error}); {GIVE}.") from None


def is_loopback(host: str) -> bool:
    """Whether all that a name stands for is this machine."""
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return all(ipaddress.ip_address(one.partition("%")[0]).is_loopback for one in found)


def _local_cluster(workers: int) -> Any:
    """Worker processes of one thread. With certificates that exist in memory only: other users of this machine can
    reach its ports too."""
    from distributed import LocalCluster
    from distributed.security import Security

    return LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        host="127.0.0.1",
        protocol="tls://",
        security=Security.temporary(),
        dashboard_address="127.0.0.1:0",
        memory_limit=None,
        silence_logs=logging.ERROR,
    )


class _Jobs(Executor):
    """Dask's executor, whose jobs can `tell`."""

    def __init__(self, client: Any, topic: str) -> None:
        self.executor, self.topic = client.get_executor(pure=False), topic

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph")  # a model, which is sent once for each task
            made: Future[Any] = self.executor.submit(_work, self.topic, partial(fn, *args, **kwargs))
        return made

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.executor.shutdown(wait and not cancel_futures)


_alone = threading.Lock()


def _work(topic: str, job: Job) -> Any:
    """In a worker: one job at a time, however many threads it has."""
    import torch

    with _alone, telling(partial(_log, topic)):
        torch.set_flush_denormal(True)  # as in the process of a command, before torch starts more threads
        try:
            return job()
        except DataError as error:
            raise DataError(f"on {socket.gethostname()}: {error}") from error


class Dropped(Exception):
    """Nobody waits for this job any more."""


def _log(topic: str, message: Any) -> None:
    from distributed import get_worker

    worker = get_worker()
    state = worker.state.tasks.get(worker.get_current_task())
    if state is None or state.state == "cancelled":
        raise Dropped
    worker.log_event(topic, message)
