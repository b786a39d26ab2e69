"""What schemathesis is to see in every answer: no fault of the server's, and refusals in one sentence."""

from __future__ import annotations

from typing import Any

import schemathesis


@schemathesis.check
def one_sentence(ctx: Any, response: Any, case: Any) -> None:
    assert response.status_code < 500, response.content
    assert b"Traceback" not in response.content
    if response.status_code < 400 or "json" not in (response.headers.get("content-type") or [""])[0]:
        return
    sentence = response.json()["error"]
    assert isinstance(sentence, str)
    assert sentence.strip()
    assert "\n" not in sentence
