"""What a command prints: foreign text with nothing that steers a terminal, in whatever encoding the terminal has."""

from __future__ import annotations

import codecs
import json
import os
import sys
import warnings
from typing import Any

from ibpwf.errors import printable

_PLAIN = str.maketrans({"–": "-", "—": "-", "−": "-", "×": "x", "±": "+-", "·": "*", "≥": ">=", "≤": "<="})
_PLAIN |= str.maketrans({"…": "...", "█": "#", "░": ".", "✅": "yes", "❌": "no"})

_STEERING = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}  # control characters that JSON lets through


def _in_plain_words(error: UnicodeError) -> tuple[str, int]:
    """For characters that an encoding lacks: something like them, or their escape."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_PLAIN)
    return text.encode("ascii", "backslashreplace").decode("ascii"), error.end


codecs.register_error("ibpwf-plain", _in_plain_words)


def prepare_streams() -> None:
    """Make standard input, output and error safe to use: open, whoever started us, and able to take any text.

    Where one is closed, the next file to be opened would take its number, and be written to by whoever prints.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="ibpwf-plain")
    warnings.showwarning = _show_warning


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    say(f"warning: {message}", err=True)


def say(text: str = "", *, err: bool = False) -> None:
    """Print a line, on standard output or error."""
    stream = sys.stderr if err else sys.stdout
    stream.write(printable(text, keep="\n\t") + "\n")
    stream.flush()


def json_text(value: object, encoding: str = "utf-8") -> str:
    """JSON to read: characters as they are where the encoding has them all, as escapes otherwise."""
    text = json.dumps(value, indent=2, ensure_ascii=False).translate(_STEERING)
    try:
        text.encode(encoding)
    except UnicodeEncodeError:  # a terminal of another age, or a path that is no UTF-8
        return json.dumps(value, indent=2)
    return text


def print_json(value: object) -> None:
    """Print JSON on standard output; what it holds cannot steer a terminal, since control characters are escaped."""
    sys.stdout.write(json_text(value, sys.stdout.encoding or "ascii") + "\n")
    sys.stdout.flush()
