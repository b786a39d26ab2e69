"""Tables with columns of every kind, asked over HTTP: numbers, truth values, categories, dates and texts."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from served import client_of, outputs
from starlette.testclient import TestClient

from ibpwf import ContinualClassifier
from ibpwf.data import ReadOptions, read_examples, texts
from ibpwf.estimator.files import LearnOptions, layout_of, learn_file
from ibpwf.serving.batching import Rows, predict
from ibpwf.serving.protocol import HEADER

KINDS = {"size": "FP64", "ripe": "BOOL", "color": "BYTES", "picked": "BYTES", "note": "BYTES"}


class Letters:
    """Stands for a sentence encoder: any text has a vector of its own."""

    digest, width = "ab" * 32, 6

    def encode(self, words: Sequence[str], at_once: int) -> torch.Tensor:
        drawn = [np.random.default_rng(zlib.crc32(word.encode())).normal(size=self.width) for word in words]
        return torch.tensor(np.array(drawn), dtype=torch.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """`fruit`, a model of a table with a column of each kind, `notes`, one of texts alone, and their files."""
    patch, made = pytest.MonkeyPatch(), tmp_path_factory.mktemp("columns")
    patch.setattr(texts, "encoder_named", lambda name, options: Letters())
    chance = np.random.default_rng(0)
    kind = np.repeat(["apple", "pear"], 30)
    frame = pandas.DataFrame(
        {
            "size": chance.normal(0, 1, 60) + 3 * (kind == "pear"),
            "ripe": chance.random(60) < 0.5,
            "color": chance.choice(["red", "green"], 60),
            "picked": pandas.Timestamp("2026-01-01") + pandas.to_timedelta(chance.integers(0, 300, 60), "D"),
            "note": [f"basket {number}, from the hill" for number in range(60)],
            "kind": kind,
        }
    )
    frame.to_csv(made / "fruit.csv", index=False)
    frame[["note", "kind"]].to_csv(made / "notes.csv", index=False)
    quick = {"epochs": 2, "hidden": (8,), "settings": {"inference.features.width": 16}}
    options = LearnOptions(read=ReadOptions(label="kind", text=("note",), encoder="minilm-l6"), device="cpu")
    for name in ("fruit", "notes"):
        learn_file(made / "models" / name, made / f"{name}.csv", "first", quick, options)
    yield made
    patch.undo()


@pytest.fixture(scope="module")
def asked(folder: Path) -> Iterator[TestClient]:
    with client_of(folder / "models", read_only=True) as client:
        yield client


def tensors(frame: pandas.DataFrame) -> list[dict[str, Any]]:
    return [
        {"name": name, "shape": [len(frame)], "datatype": kind, "data": frame[name].tolist()}
        for name, kind in KINDS.items()
    ]


def test_metadata_names_a_datatype_for_every_kind_of_column(asked):
    found = asked.get("/v2/models/fruit").json()["inputs"]
    assert {one["name"]: one["datatype"] for one in found} == {**KINDS, "task": "BYTES"}


def test_columns_of_every_kind_are_answered_as_the_file_is(asked, folder):
    frame = pandas.read_csv(folder / "fruit.csv")
    content = asked.post("/v2/models/fruit/infer", json={"inputs": tensors(frame)}).json()
    classifier = ContinualClassifier.load(folder / "models" / "fruit")
    x = read_examples(folder / "fruit.csv", ReadOptions(like=layout_of(classifier))).inputs
    truth = predict(classifier, [Rows(x, [None] * len(x))])[0]
    assert outputs(content)["label"] == truth.labels.tolist()
    assert outputs(content)["probability"] == truth.probability.tolist()
    sent = asked.post("/v2/models/fruit/predict", content=(folder / "fruit.csv").read_bytes()).json()
    assert [row["probability"] for row in sent["rows"]] == truth.probability.tolist()


def test_a_category_never_seen_is_refused_with_what_to_send_and_that_helps(asked, folder):
    frame = pandas.read_csv(folder / "fruit.csv")[:2]
    frame["color"] = "purple"
    refused = asked.post("/v2/models/fruit/infer", json={"inputs": tensors(frame)})
    assert refused.status_code == 400
    assert "give parameters.unknown='zeros'" in refused.json()["error"]
    helped = {"inputs": tensors(frame), "parameters": {"unknown": "zeros"}}
    assert asked.post("/v2/models/fruit/infer", json=helped).status_code == 200
    wrong = {**helped, "parameters": {"unknown": "maybe"}}
    assert "give error or zeros" in asked.post("/v2/models/fruit/infer", json=wrong).json()["error"]
    file = frame.to_csv(index=False).encode()
    refused = asked.post("/v2/models/fruit/predict", content=file)
    assert "give the parameter unknown=zeros" in refused.json()["error"]
    assert asked.post("/v2/models/fruit/predict?unknown=zeros", content=file).status_code == 200


def test_a_date_that_is_none_is_refused(asked, folder):
    frame = pandas.read_csv(folder / "fruit.csv")[:1]
    frame["picked"] = "yesterday"
    refused = asked.post("/v2/models/fruit/infer", json={"inputs": tensors(frame)})
    assert refused.status_code == 400
    assert "'picked'" in refused.json()["error"]


def test_a_plain_text_is_answered_and_so_is_a_tensor_of_texts(asked):
    words = 'basket 3, from the "hill"\nand a second line'
    plain = asked.post("/v2/models/notes/predict", content=words.encode()).json()
    tensor = {"name": "note", "shape": [1], "datatype": "BYTES", "data": [words]}
    sent = asked.post("/v2/models/notes/infer", json={"inputs": [tensor]}).json()
    assert [row["probability"] for row in plain["rows"]] == outputs(sent)["probability"]
    assert "A text" in asked.get("/models/notes").text
    assert 'name="unknown"' not in asked.get("/models/notes").text
    assert 'name="unknown"' in asked.get("/models/fruit").text


def test_a_number_that_is_missing_is_filled_in_where_the_request_says_so(asked, folder):
    frame = pandas.read_csv(folder / "fruit.csv")[:1]
    entries = tensors(frame)
    entries[0] |= {"data": None, "parameters": {"binary_data_size": 8}}
    for parameters, status in (({}, 400), ({"missing": "mean"}, 200)):
        head = json.dumps({"inputs": entries, "parameters": parameters}).encode()
        body, headers = head + np.array([np.nan]).tobytes(), {HEADER: str(len(head))}
        assert asked.post("/v2/models/fruit/infer", content=body, headers=headers).status_code == status


@pytest.mark.parametrize(
    ("address", "word"),
    [
        ("POST /v2/models/fruit/predict?vresion=1", "'vresion'; there are ignore, missing, task, unknown, version"),
        ("GET /v2/models/fruit?Version=1", "'Version'"),
        ("GET /v2?x=1", "takes none"),
        ("POST /v2/models/fruit/predict?missing=zeros", "give error or mean"),
    ],
)
def test_a_parameter_that_there_is_not_is_refused(asked, address, word):
    method, path = address.split()
    refused = asked.request(method, path, content=b"a,b\n1,2\n")
    assert refused.status_code == 400
    assert word in refused.json()["error"]
