"""The Open Inference Protocol over HTTP, asked by clients that are not ours, compared with the classifier itself."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from served import NAMES, TASKS, Server, blobs, columns, outputs, pixels, png, request

from ibpwf import ContinualClassifier

triton = pytest.importorskip("tritonclient.http")

X = blobs(range(6), each=5, seed=5)[0]
X = np.concatenate([X, X[:2]])  # 32 rows: as many as a pass may have, so that the classifier itself has the same bits


@pytest.fixture(scope="module")
def classifier(server: Server) -> ContinualClassifier:
    return ContinualClassifier.load(server.models / "things")


def triton_inputs(x: np.ndarray, binary: bool) -> list[object]:
    made = []
    for place, name in enumerate(NAMES):
        one = triton.InferInput(name, [len(x)], "FP64")
        one.set_data_from_numpy(np.ascontiguousarray(x[:, place]), binary_data=binary)
        made.append(one)
    return made


def test_triton_finds_the_server_live_its_models_ready_and_their_versions(server):
    client = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("things")
    assert client.is_model_ready("things", "2")
    assert not client.is_model_ready("things", "9")
    assert client.get_server_metadata()["name"] == "ibpwf"
    about = client.get_model_metadata("things", "2")
    assert about["versions"] == ["1", "2", "3"]
    assert [one["name"] for one in about["inputs"]] == [*NAMES, "x", "task"]
    assert about["parameters"]["tasks"] == ["fruit", "trees"]
    listed = client.get_model_repository_index()
    assert {(one["name"], one["version"]) for one in listed} >= {("things", "3"), ("pictures", "1")}


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("compressed", [None, "gzip", "deflate"])
def test_triton_is_answered_what_the_classifier_answers(server, classifier, binary, compressed):
    client = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    names = ("label", "probability", "task", "task_probabilities", "entropy", "novelty")
    wanted = [triton.InferRequestedOutput(name, binary_data=binary) for name in names]
    found = client.infer(
        "things",
        triton_inputs(X, binary),
        outputs=wanted,
        request_id="mine",
        request_compression_algorithm=compressed,
    )
    truth = classifier.prediction(X.astype(np.float32))
    labels = [one.decode() if isinstance(one, bytes) else one for one in found.as_numpy("label")]
    assert labels == truth.labels.tolist()
    assert found.get_response()["id"] == "mine"
    for name in ("probability", "entropy", "novelty", "task_probabilities"):
        np.testing.assert_array_equal(found.as_numpy(name), getattr(truth, name))


def test_a_given_task_is_answered_for_and_rows_of_several_tasks_go_in_one_request(server, classifier):
    client = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    found = client.infer("things", triton_inputs(X, True), parameters={"task": "trees"})
    assert {one.decode() for one in found.as_numpy("label")} <= {"oak", "elm"}
    tasks = [("fruit", "", "pets")[row % 3] for row in range(len(X))]
    each = triton.InferInput("task", [len(X)], "BYTES")
    each.set_data_from_numpy(np.array([one.encode() for one in tasks], dtype=object))
    found = client.infer("things", [*triton_inputs(X, True), each])
    for row, task in enumerate(tasks):
        alone = classifier.prediction(np.repeat(X[row : row + 1], 16, 0).astype(np.float32), task or None)
        assert found.as_numpy("label")[row].decode() == alone.labels[0]
        assert found.as_numpy("probability")[row] == alone.probability[0]
    listed = server.http.post("/v2/models/things/infer", json=request(X, parameters={"task": ["fruit"] * len(X)}))
    assert set(outputs(listed.json())["task"]) == {"fruit"}


def test_every_version_answers_as_the_model_did_when_it_was_the_newest(server, made_models, tmp_path):
    for number in (1, 2, 3):
        classifier = ContinualClassifier.load(server.models / "things").first_tasks(number)
        classifier.save(tmp_path / str(number))
        truth = ContinualClassifier.load(tmp_path / str(number)).prediction(X.astype(np.float32))
        found = server.http.post(f"/v2/models/things/versions/{number}/infer", json=request(X)).json()
        assert found["model_version"] == str(number)
        assert outputs(found)["probability"] == truth.probability.tolist()
        assert outputs(found)["novelty"] == truth.novelty.tolist()
        assert set(outputs(found)["task"]) <= set(TASKS[:number])


def test_all_numbers_of_a_row_may_come_as_one_tensor(server):
    whole = {"name": "x", "shape": list(X.shape), "datatype": "FP64", "data": X.tolist()}
    one = server.http.post("/v2/models/things/infer", json={"inputs": [whole]}).json()
    many = server.http.post("/v2/models/things/infer", json=request(X)).json()
    assert one["outputs"] == many["outputs"]


def test_images_come_as_files_in_bytes_or_as_pixels(server):
    client = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    images = pixels(X[:6])
    files = triton.InferInput("image", [6], "BYTES")
    files.set_data_from_numpy(np.array([png(image) for image in images], dtype=object))
    numbers = triton.InferInput("x", [6, 1, 4, 4], "UINT8")
    numbers.set_data_from_numpy(images[:, None])
    both = [client.infer("pictures", [given]) for given in (files, numbers)]
    np.testing.assert_array_equal(both[0].as_numpy("probability"), both[1].as_numpy("probability"))
    truth = ContinualClassifier.load(server.models / "pictures").prediction(
        np.repeat(images[:, None] / np.float32(255), 3, 0)
    )
    assert both[0].as_numpy("label")[0].decode() == truth.labels[0]


def test_curl_is_all_it_takes(server, tmp_path):
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    asked = tmp_path / "request.json"
    asked.write_text(json.dumps(request(X[:2], outputs=[{"name": "label"}])))
    words = ["curl", "-sf", f"{server.address}/v2/models/things/infer", "-d", f"@{asked}"]
    found = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    assert [one["name"] for one in found["outputs"]] == ["label"]
    assert found["outputs"][0]["shape"] == [2]


def test_a_file_is_answered_row_by_row_and_two_versions_are_compared(server):
    file = (server.models.parent / "test.csv").read_bytes()
    found = server.http.post("/v2/models/things/predict", content=file).json()
    assert len(found["rows"]) == 30
    assert found["accuracy"] > 60
    compared = server.http.post("/v2/models/things/compare", params={"versions": "2,3"}, content=file).json()
    assert compared["task_incremental"] == [
        {"task": task, "bit_identical": True, "different": []} for task in ("fruit", "trees")
    ]
    assert set(compared["changed"]) <= set(range(30))


def test_what_a_server_does_is_counted_for_prometheus(server):
    server.http.post("/v2/models/things/infer", json=request(X))
    told = server.http.get("/metrics").text
    assert 'ibpwf_requests_total{route="/v2/models/{model}/infer",status="200"}' in told
    assert 'ibpwf_versions{model="things"} 3.0' in told


def test_columns_are_found_by_name_whatever_their_order(server):
    turned = {"inputs": columns(X)[::-1]}
    found = server.http.post("/v2/models/things/infer", json=turned).json()
    assert found["outputs"] == server.http.post("/v2/models/things/infer", json=request(X)).json()["outputs"]


def test_a_version_is_never_read_from_a_path_of_the_clients(server, tmp_path: Path):
    for name in ("..", "../things", "%2e%2e", "things%2f..%2fthings", "/etc/passwd", "things\\..", "."):
        answered = server.http.get(f"/v2/models/{name}/versions/1")
        assert answered.status_code in (404, 405), name


def test_an_answer_that_is_written_in_pieces_says_what_it_says_as_a_whole():
    from ibpwf.inference.prediction import Prediction
    from ibpwf.serving.protocol import AT_ONCE, OUTPUTS, InferRequest, Output, write_response

    count, tasks = AT_ONCE + 7, 3
    chance = np.random.default_rng(0)
    names = np.array(['a, "b"', "[c]"], dtype=object)[chance.integers(0, 2, count)]
    novelty = np.where(chance.random(count) < 0.1, np.inf, chance.random(count))
    p = chance.random((count, tasks))
    sure = chance.random((count, 2))
    classes = ('a, "b"', "[c]")
    answer = Prediction(names, sure, classes, names, p, chance.random(count), novelty=novelty)
    request = InferRequest({}, tuple(map(Output, OUTPUTS)), None, "mine")
    content = json.loads(write_response(request, "things", 2, answer)[0])
    found = {one["name"]: one for one in content.pop("outputs")}
    assert content == {"model_name": "things", "model_version": "2", "id": "mine"}
    assert found["task_probabilities"]["shape"] == [count, tasks]
    assert found["task_probabilities"]["data"] == answer.task_probabilities.ravel().tolist()
    assert found["label"]["data"] == names.tolist()
    assert found["novelty"]["data"] == [value if np.isfinite(value) else None for value in novelty.tolist()]
