"""Score the stored models of a run again, with other settings of task inference: what was trained stays as it is.

`python -m ibpwf.lab.experiments.rescore RUN --set ridge=3e-5 --out FILE` reads a run folder with its models and
writes a result as the run itself would have with these settings. Tasks are taken out from the last to the first, so
that every row of the accuracy matrix is measured anew; `uncertainty` is left out.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from ibpwf.errors import InputError, run_program
from ibpwf.inference.gaussian import GroupedInference
from ibpwf.lab.data.tasks import Scenario
from ibpwf.lab.evaluation.evaluate import score
from ibpwf.lab.experiments.result import commit, environment, make_result
from ibpwf.lab.experiments.run_config import RunConfig
from ibpwf.learner import Learner
from ibpwf.method import IBPWF
from ibpwf.parts import parse_assignment
from ibpwf.settings import Settings
from ibpwf.storage.files import read_json, write_json

CHANGEABLE = ("ridge", "shrinkage")


def changed_settings(old: Settings, new: Settings) -> list[str]:
    """What differs; an error where that had a part in training."""
    before, now = old.to_json(), new.to_json()
    changed = [name for name in now if now[name] != before[name]]
    for name in changed:
        if name not in CHANGEABLE:
            raise InputError(
                f"{name} is {now[name]!r}, but the models were trained with {before[name]!r}; only "
                f"{' and '.join(CHANGEABLE)} can change without training anew."
            )
    return changed


def rescored_rows(
    learner: Learner, settings: Settings, rows: list[dict[str, Any]], stream: Scenario
) -> list[dict[str, Any]]:
    """The rows of one seed, with what task inference decides measured again. The learner has no tasks left then."""
    method = learner.method
    assert isinstance(method, IBPWF)
    if len(learner.tasks) != len(rows):
        raise InputError(f"a model has {len(learner.tasks)} tasks, but its rows.json has {len(rows)} rows.")
    assert isinstance(method.inference, GroupedInference)
    changes = {name: getattr(settings, name) for name in CHANGEABLE if name in type(method.inference).model_fields}
    method.inference = method.inference.regularized(**changes)
    found = []
    for number in reversed(range(len(rows))):
        scores = [score(learner, task.index, task.test.x, task.test.y) for task in stream[: number + 1]]
        measured = {
            "task_accuracy": [s.task for s in scores],
            "class_accuracy": [s.class_ for s in scores],
            "task_inference": [s.task_inference for s in scores],
        }
        # How sure it is would take posterior draws of every task, many times as long as all the rest.
        found.append({**rows[number], **measured, "uncertainty": None})
        learner.forget(number)
    return found[::-1]


def rescore(folder: Path, changes: dict[str, Any], device: str, command: str) -> dict[str, Any]:
    """The result of a run folder under other settings of task inference."""
    old_config, old = (read_json(folder / name) for name in ("config.json", "result.json"))
    if old_config["method"] != "ibpwf":
        raise InputError(f"{folder} is a run of {old_config['method']}; only models of ibpwf can be scored again.")
    config = RunConfig.from_stored(old_config, changes, device=device)
    settings = config.settings()
    assert isinstance(settings, Settings)
    changed = changed_settings(Settings.from_json(old_config["settings"]), settings)
    records, stream = [], None
    for seed in config.seeds:
        stream = config.stream(seed)
        learner = Learner.load(folder / f"seed-{seed}" / "model", device=device)
        record = read_json(folder / f"seed-{seed}" / "rows.json")
        records.append({**record, "rows": rescored_rows(learner, settings, record["rows"], stream)})
    assert stream is not None
    result = make_result(config, stream, records, old["command"])
    trained = {name: old[name] for name in ("environment", "commit", "seconds", "samples_per_second")}
    again = {"settings": changed, "command": command, "commit": commit(), "environment": environment(device)}
    return {**result, **trained, "rescored": again}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m ibpwf.lab.experiments.rescore", description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    command = "python -m ibpwf.lab.experiments.rescore " + shlex.join(arguments)
    changes = dict(parse_assignment(text) for text in given.changes)
    result = rescore(given.run, changes, given.device, command)
    write_json(given.out, result)
    for name, entry in (*result["accuracy"].items(), ("task inference", result["task_inference"])):
        sys.stdout.write(f"{name}: {entry['mean']:.2f} ± {entry['std'] or 0.0:.2f}\n")
    return 0


if __name__ == "__main__":
    run_program(main)
