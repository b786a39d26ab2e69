"""`ibpwf watch` killed at any call to the disk and started again learns each file once and logs all once."""

from __future__ import annotations

import hashlib
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from killed_watch import DONE, LABELLED, MEANS, ROWS, watch, write_files

from ibpwf import ContinualClassifier
from ibpwf.estimator.watch import undo_last
from ibpwf.storage.files import read_jsonl
from ibpwf.storage.folder import MANIFEST
from ibpwf.storage.model_folder import verify_model
from killed_writes import run_until

X = np.repeat(MEANS, 4, axis=0)


def state_of(model: Path) -> str:
    """The bits of all answers, and every decision."""
    classifier = ContinualClassifier.load(model, device="cpu")
    said = repr((classifier.tasks_, classifier.stream_rows_, classifier.stream_log_)).encode()
    return hashlib.sha256(said + classifier.predict_proba(X).tobytes()).hexdigest()


def faults_of_log(model: Path) -> tuple[int, int]:
    """How many lines of files and decisions are missing, and how many are there twice."""
    lines = read_jsonl(model.with_name("model.watch") / "log.jsonl")
    found = Counter((line["file"], line["event"]) for line in lines if "file" in line)
    wanted = Counter(DONE.items())
    decisions = Counter(line["number"] for line in lines if line["event"] == "decision")
    numbers = Counter(line["number"] for line in ContinualClassifier.load(model, device="cpu").stream_log_)
    missing = (wanted - found) + Counter(map(str, (numbers - decisions).elements()))
    repeated = (found - wanted) + Counter(map(str, (decisions - numbers).elements()))
    return missing.total(), repeated.total()


@pytest.mark.parametrize("step", [80, pytest.param(2, marks=pytest.mark.faults)])
def test_a_watch_killed_at_any_call_to_the_disk_goes_on_and_logs_every_line_once(
    tmp_path: Path, step: int, tally: Callable[..., None]
) -> None:
    torch.set_num_threads(1)
    write_files(tmp_path / "in")
    place = tmp_path / "place"
    model = place / "model"

    def anew() -> None:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()

    anew()
    watch(model, tmp_path / "in")  # all that it imports is there for the processes that are forked from this one
    expected = state_of(model)
    anew()
    code, events = run_until(lambda: watch(model, tmp_path / "in"), 0)
    assert (code, state_of(model)) == (0, expected)
    assert ContinualClassifier.load(model, device="cpu").stream_rows_ == ROWS * len(LABELLED)
    assert faults_of_log(model) == (0, 0)
    ahead = {line["file"] for line in read_jsonl(place / "model.watch" / "log.jsonl") if "seconds_ahead" in line}
    assert ahead == {"9.csv"}
    chance = random.Random(step)
    kills = refused = wrong = missing = repeated = lost = in_first_save = 0
    for at in range(step, events + 1, step):
        anew()
        last = at
        for again in range(3):  # the second and third at any moment of what is left
            code, _ = run_until(lambda: watch(model, tmp_path / "in"), last)
            if code == 0:
                break
            refused += code != -9
            kills += 1
            if model.is_dir():
                in_first_save += not (model / MANIFEST).exists() and any(
                    ".safetensors" in p.name for p in model.iterdir()
                )
                lost += (model / MANIFEST).exists() and bool(verify_model(model).problems)
            last = chance.randrange(1, events) if again == 0 and at % 3 == 0 else 10**9
        refused += code != 0
        found, twice = faults_of_log(model)
        missing, repeated = missing + found, repeated + twice
        wrong += state_of(model) != expected
        checked = verify_model(model)
        lost += bool(checked.problems or checked.foreign or checked.leftovers)
    assert in_first_save
    tally(
        "kills of ibpwf watch at a call to the disk",
        kills,
        seed=step,
        refused=refused,
        lost=lost,
        wrong=wrong,
        missing=missing,
        repeated=repeated,
    )


def test_an_undo_killed_before_its_line_is_logged_with_the_next_one(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    write_files(tmp_path / "in")
    model = tmp_path / "model"
    assert run_until(lambda: watch(model, tmp_path / "in"), 0)[0] == 0
    before = tmp_path / "before"
    shutil.copytree(model, before)
    log = tmp_path / "model.watch" / "log.jsonl"
    lines = log.read_bytes()
    code, events = run_until(lambda: undo_last(model, "cpu"), 0)
    assert code == 0
    unlogged = 0
    for at in range(events, 0, -1):
        shutil.rmtree(model)
        shutil.copytree(before, model)
        log.write_bytes(lines)
        assert run_until(lambda: undo_last(model, "cpu"), at)[0] == -9
        undone = ContinualClassifier.load(model, device="cpu").stream_log_[-1]["decision"] == "undo"
        if not undone:
            break
        unlogged += not any(line.get("decision") == "undo" for line in read_jsonl(log))
        assert run_until(lambda: watch(model, tmp_path / "in"), 0)[0] == 0
        assert faults_of_log(model) == (0, 0)
    assert unlogged
