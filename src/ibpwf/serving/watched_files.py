"""Files that are read again when they change, however they are replaced: in place, by a rename, or behind a link."""

from __future__ import annotations

import os
import time
from pathlib import Path

YOUNG = 2.0
"""Seconds after a write in which another one may leave the same times and size, so the file is read again."""


class WatchedFiles:
    """Tells whether files have changed since they were last looked at."""

    def __init__(self, *paths: Path) -> None:
        self.paths = paths
        self._seen, self._young = self._look()

    def changed(self) -> bool:
        """Whether they are other files than at the last call, or were written too recently to tell."""
        before, young = self._seen, self._young
        self._seen, self._young = self._look()
        return young or self._seen != before

    def _look(self) -> tuple[list[tuple[int, ...] | None], bool]:
        found: list[tuple[int, ...] | None] = []
        young, now = False, time.time()
        for path in self.paths:
            try:
                one = os.stat(path)
            except OSError:
                found.append(None)
                continue
            # The time of the last write may be set back, as copying does; that of the last change may not.
            found.append((one.st_dev, one.st_ino, one.st_mtime_ns, one.st_ctime_ns, one.st_size))
            young = young or any(abs(now - when) < YOUNG for when in (one.st_mtime, one.st_ctime))
        return found, young
