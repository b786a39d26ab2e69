"""Commands and settings of result files under the names that settings have now, so that they can be typed again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from ibpwf.parts import parse_assignment

INFERENCE = {"task": "gaussian", "class": "class-gaussian", "shared": "shared-gaussian"}
"""Values of `inference` by those that the setting `gaussians` had."""


def present_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Recorded settings under the names they have now: `inference` was `gaussians`, and `features` was told by
    `inference_features` and `inference_layers`."""
    now = dict(values)
    if "gaussians" in now:
        now["inference"] = INFERENCE[now.pop("gaussians")]
    if "inference_features" in now:
        now["features"] = "factors" if now.pop("inference_features") == "factors" else "layer"
    if now.get("inference_layers") == "random":
        now["features"] = "random"
        del now["inference_layers"]
    return now


def present_command(command: str) -> str:
    """A recorded command line whose `--set NAME=VALUE` has today's name and value."""
    words = shlex.split(command)
    for place, word in enumerate(words[:-1]):
        if word == "--set":
            name, value = parse_assignment(words[place + 1])
            now = present_settings({name: value})
            if name not in now:
                command = command.replace(
                    words[place + 1], " --set ".join(f"{key}={value}" for key, value in now.items())
                )
    return command


def present_changes(result: Mapping[str, Any]) -> list[str]:
    """What a recorded run changed in its preset, as `--set` takes it today."""
    return [f"{name}={value}" for name, value in present_settings(result.get("changes") or {}).items()]
