"""Who may predict, train and administer: tokens with roles, of which only digests are stored."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from ibpwf.data.opening import quoted
from ibpwf.errors import IBPWFError, InputError, StoreError
from ibpwf.serving.faults import Refused, busy
from ibpwf.serving.records import log
from ibpwf.serving.watched_files import WatchedFiles
from ibpwf.storage.files import decode_json, read_bytes, write_json

_NAME = re.compile(r"[\w.@-]{1,64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Role(IntEnum):
    """What a caller may do; each may do what those before it may."""

    anyone = 0
    predict = 1
    learn = 2
    admin = 3


ROLES = [role.name for role in Role if role]
_ROLES = ", ".join(ROLES)


@dataclass(frozen=True)
class Caller:
    """Who sent a request."""

    name: str
    role: Role


@dataclass(frozen=True)
class Token:
    """Of a token its owner, role and digest are kept, never the token. It is 256 random bits, so that a plain digest
    tells nothing of it."""

    name: str
    role: Role
    sha256: str


def digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def read_tokens(path: Path) -> list[Token]:
    """The tokens of a file that `add_token` has written."""
    data = read_bytes(path)
    with contextlib.suppress(StoreError, KeyError, TypeError):
        if isinstance(entries := decode_json(data, path)["tokens"], list):
            return [_token(path, entry) for entry in entries]
    raise InputError(f"{path} is not a token file; remove it, and --new-token NAME makes a new one.")


def _token(path: Path, entry: Any) -> Token:
    fields = entry if isinstance(entry, dict) else {}
    name, role, found = (str(fields.get(field, "")) for field in ("name", "role", "sha256"))
    if not _NAME.fullmatch(name) or role not in ROLES or not _DIGEST.fullmatch(found):
        raise InputError(f"{path} has the token {quoted(str(entry))}; each needs name, role ({_ROLES}), sha256.")
    return Token(name, Role[role], found)


def add_token(path: Path, name: str, role: str) -> str:
    """Make a token, note its digest in the file, and give it back: it is shown once."""
    if role not in ROLES:
        raise InputError(f"role is '{role}'; give {_ROLES}.")
    if not _NAME.fullmatch(name):
        raise InputError(f"the token's name is {quoted(name)}; give letters, digits, '.', '_', '-' or '@'.")
    known = read_tokens(path) if os.path.exists(path) else []
    if any(token.name == name for token in known):
        raise InputError(f"{path} has a token named '{name}' already; choose another name, or remove its line.")
    token = secrets.token_urlsafe(32)
    known.append(Token(name, Role[role], digest(token)))
    write_json(path, {"tokens": [{**vars(one), "role": one.role.name} for one in known]})
    path.chmod(0o600)
    return token


class TokenFile:
    """The tokens of a file, read again when it changes: a token that was removed from it is rejected from then on.

    A file that cannot be read, or is not a token file, as when an editor has written half of it, changes nothing; the
    log says so once.
    """

    SECONDS = 0.25
    """Between two looks at the file: a stat, even of a slow disk, must not be paid by every request."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._watched = WatchedFiles(path)  # before reading: what is written meanwhile is seen at the next look
        self._tokens = read_tokens(path)
        self._problem = ""
        self._next_look = time.monotonic() + self.SECONDS

    def tokens(self) -> list[Token]:
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + self.SECONDS
            if self._watched.changed():
                self._read()
        return self._tokens

    def _read(self) -> None:
        try:
            found, problem = read_tokens(self.path), ""
        except IBPWFError as error:
            found, problem = self._tokens, str(error)
        if problem and problem != self._problem:
            log.error("the token file cannot be used; the tokens read before stay valid: %s", problem)
        if found != self._tokens:
            log.info("the token file has changed: %d tokens instead of %d", len(found), len(self._tokens))
        self._tokens, self._problem = found, problem


class Access:
    """Identifies callers by their tokens. Without tokens, everyone who reaches the server has every role."""

    def __init__(self, tokens: TokenFile | list[Token] | None, *, read_only: bool = False) -> None:
        self._tokens = tokens
        self._most = Role.predict if read_only else Role.admin

    @property
    def is_open(self) -> bool:
        return self._tokens is None

    def caller(self, token: str | None) -> Caller:
        """Every stored digest is compared, each in the same time, so a wrong token takes as long as a right one."""
        if self._tokens is None:
            return Caller("local", self._most)
        given, found = digest(token or ""), Caller("anyone", Role.anyone)
        for known in self._tokens if isinstance(self._tokens, list) else self._tokens.tokens():
            if hmac.compare_digest(given, known.sha256):
                found = Caller(known.name, min(known.role, self._most))
        return found

    def check(self, caller: Caller, needed: Role, doing: str) -> None:
        if caller.role >= needed:
            return
        if caller.role is Role.anyone:
            raise Refused(401, f"{doing} needs a token; send it as 'Authorization: Bearer TOKEN'.")
        if needed > self._most:
            raise Refused(403, f"{doing} is not available: the server was started read-only.")
        raise Refused(403, f"{doing} needs the role {needed.name}, and this token has {caller.role.name}.")


class Rate:
    """So many requests a second of each caller, with a second's worth at once."""

    CALLERS = 10_000
    """That are remembered. Who has not asked for longest is forgotten first, and has all requests again."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # who asked last is last

    def check(self, who: str) -> None:
        if not self.rate:
            return
        now, most = time.monotonic(), max(self.rate, 1.0)
        left, then = self._left.pop(who, (most, now))
        left = min(most, left + (now - then) * self.rate)
        self._left[who] = left if left < 1 else left - 1, now
        if len(self._left) > self.CALLERS:
            self._left.popitem(last=False)
        if left < 1:
            raise busy(f"more than {self.rate:g} requests a second; ask more slowly.")
