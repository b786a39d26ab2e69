"""Commands and settings of result files under the names that settings have now, so that they can be typed again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from ibpwf.parts import parse_assignment

FEATURES = "inference.features"
NAMES = {
    "features": FEATURES,
    "inference_layers": f"{FEATURES}.layers",
    "random_features": f"{FEATURES}.width",
    **{f"patch_{name}": f"{FEATURES}.{name}" for name in ("filters", "sizes", "grid", "epsilon")},
    "backbone": f"{FEATURES}.name",
    **{f"backbone_{name}": f"{FEATURES}.{name}" for name in ("depths", "grid", "size", "projection")},
    **{f"image_{name}": f"input.{name}" for name in ("shape", "mean", "std")},
    **{f"router_{name}": f"inference.{name}" for name in ("ridge", "precision")},
    **{
        name: f"inference.{name}"
        for name in ("ridge", "shrinkage", "experts", "expert_weight", "second_opinion", "keep_sums_per_task")
    },
    "held_out": "validation_fraction",
}
"""Names that settings have now by those they had."""

GAUSSIANS = {"task": "gaussian", "class": "class-gaussian", "shared": "shared-gaussian"}
"""Values of `inference` by those that the setting `gaussians` had."""


def present_settings(values: Mapping[str, Any], method: str = "ibpwf") -> dict[str, Any]:
    """Recorded settings under the names they have now; those of other methods never changed."""
    now = dict(values)
    if method != "ibpwf":
        return now
    if "gaussians" in now:
        now["inference"] = GAUSSIANS[now.pop("gaussians")]
    if "inference_features" in now:
        now["features"] = "factors" if now.pop("inference_features") == "factors" else "layer"
    if now.get("inference_layers") == "random":
        now["features"] = "random"
        del now["inference_layers"]
    if now.get("inference") == "class-gaussian":
        now["inference.per"] = "class"
        del now["inference"]
    return {NAMES.get(name, name): value for name, value in now.items()}


def present_command(command: str) -> str:
    """A recorded command line as it is typed today: names and values of `--set`, and `--json` without a file."""
    command = re.sub(r"--json -(?!\S)", "--json", command)  # `evaluate` took a file, or - for the screen
    words = shlex.split(command)
    method = words[words.index("--method") + 1] if "--method" in words[:-1] else "ibpwf"
    for place, word in enumerate(words[:-1]):
        if word == "--set":
            name, value = parse_assignment(words[place + 1])
            now = present_settings({name: value}, method)
            if name not in now:
                command = command.replace(
                    words[place + 1], " --set ".join(f"{key}={value}" for key, value in now.items())
                )
    return command


def present_changes(result: Mapping[str, Any]) -> list[str]:
    """What a recorded run changed in its preset, as `--set` takes it today."""
    return [
        f"{name}={value}"
        for name, value in present_settings(result.get("changes") or {}, result.get("method", "ibpwf")).items()
    ]
