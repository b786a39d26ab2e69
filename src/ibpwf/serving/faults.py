"""What is answered to a request that cannot be served: a status and one sentence."""

from __future__ import annotations

import errno

from ibpwf.errors import IBPWFError

FULL = "The server's disk is full. Free some space on it and try again; nothing was changed."
FAULT = "Internal server error; see the server log."
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the last: of a limit on the size of files


class Refused(IBPWFError):
    """A request that is not served, with the status that says why."""

    def __init__(self, status: int, problem: str, *, retry_after: int | None = None) -> None:
        super().__init__(problem)
        self.status, self.retry_after = status, retry_after


def bad(problem: str) -> Refused:
    """A request that does not say what it should."""
    return Refused(400, problem)


def too_large(problem: str) -> Refused:
    return Refused(413, problem)


def busy(problem: str, seconds: int = 1) -> Refused:
    """More is asked than can be answered; to be asked again."""
    return Refused(429, problem, retry_after=seconds)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether the cause of an error is a full disk, or quota."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            return True
        error = error.__cause__ or error.__context__
    return False
