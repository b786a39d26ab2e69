"""Clients of the protocol that are not ours, unmodified: Triton's, and what those of MLServer and KServe send.

MLServer and KServe need other versions of FastAPI than the server, so their requests were recorded, by sending them
from an environment of their own, into `clients/*.json`.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from served import NAMES, Server, blobs, outputs, pixels, png, request

from ibpwf.serving.limits import Limits
from ibpwf.serving.protocol import HEADER, IGNORED, PARAMETERS, from_bytes, from_json, read_request

triton = pytest.importorskip("tritonclient.http")

X = blobs(range(6), each=1, seed=2)[0]
SENT = np.array([[(row + 1) * (column - 7) / 4 for column in range(16)] for row in range(2)])
"""The rows of the recorded requests."""
INFER = "/v2/models/things/infer"


def recorded(client: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((Path(__file__).parent / "clients" / f"{client}.json").read_text())[
        "requests"
    ]
    return found


def send(server: Server, sent: dict[str, Any]) -> httpx.Response:
    body = base64.b64decode(sent["body"]) if "method" in sent else sent["body"].encode()
    return server.http.request(sent.get("method", "POST"), sent["path"], content=body, headers=sent.get("headers"))


def answered(found: httpx.Response) -> dict[str, Any]:
    """The outputs of an answer as JSON has them, whatever form it has."""
    assert found.status_code == 200, found.text
    size = int(found.headers.get(HEADER, len(found.content)))
    content, rest = json.loads(found.content[:size]), found.content[size:]
    for one in content["outputs"]:
        if "data" not in one:
            length = one["parameters"]["binary_data_size"]
            values = from_bytes(one["name"], one["datatype"], tuple(one["shape"]), memoryview(rest[:length]))
            one["data"], rest = values.ravel().tolist(), rest[length:]
    return outputs(content)


def truth(server: Server, x: np.ndarray = SENT, **more: Any) -> dict[str, Any]:
    return outputs(server.http.post(INFER, json=request(x, **more)).json())


# Triton


def triton_input(x: np.ndarray, kind: str = "FP64") -> Any:
    one = triton.InferInput("x", list(x.shape), kind)
    one.set_data_from_numpy(x)
    return one


@pytest.mark.parametrize(
    "arguments",
    [
        {"timeout": 5_000_000},
        {"priority": 3},
        {"sequence_id": 7, "sequence_start": True, "sequence_end": True},
        {"sequence_id": "a sequence", "timeout": 1, "priority": 1, "request_id": "mine"},
    ],
)
def test_arguments_of_tritons_client_are_taken(server: Server, arguments: dict[str, Any]):
    client = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    found = client.infer("things", [triton_input(X)], **arguments)
    np.testing.assert_array_equal(found.as_numpy("probability"), truth(server, X)["probability"])


def test_triton_sends_bfloat16(server: Server):
    kinds = pytest.importorskip("ml_dtypes")
    client = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    rounded = X.astype(kinds.bfloat16)
    found = client.infer("things", [triton_input(rounded, "BF16")])
    np.testing.assert_array_equal(
        found.as_numpy("probability"), truth(server, rounded.astype(np.float64))["probability"]
    )


def test_bfloat16_in_json_is_rounded_to_the_nearest():
    kinds = pytest.importorskip("ml_dtypes")
    values = np.random.default_rng(0).normal(0, 100, 5000).astype(np.float32)
    bits = (np.arange(0x3F80, 0x3F90, dtype=np.uint32) << 16)[:, None] + np.array([0x7FFF, 0x8000, 0x8001], np.uint32)
    values = np.concatenate([values, bits.ravel().view(np.float32), [0.0, -0.0]]).astype(np.float32)
    found = from_json("x", "BF16", values.shape, values.astype(float).tolist())
    np.testing.assert_array_equal(found, values.astype(kinds.bfloat16).astype(np.float32))


def test_shared_memory_is_rejected_by_name(server: Server):
    client = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    one = triton.InferInput("x", [1, 16], "FP64")
    one.set_shared_memory("a region", 128)
    with pytest.raises(triton.InferenceServerException, match="'x' is in shared memory"):
        client.infer("things", [one])


def test_optional_inputs_are_in_the_metadata(server: Server):
    client = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    about = {one["name"]: one for one in client.get_model_metadata("things")["inputs"]}
    assert list(about) == [*NAMES, "x", "task"]
    assert {name for name, one in about.items() if one.get("parameters", {}).get("optional")} == {"x", "task"}
    assert about["x"]["shape"] == [-1, 16]
    pictures = {one["name"]: one for one in client.get_model_metadata("pictures")["inputs"]}
    assert pictures["image"]["parameters"]["content_type"] == "base64"
    assert pictures["x"]["shape"] == [-1, 1, 4, 4]
    assert pictures["task"]["parameters"]["optional"]


def test_the_openapi_schema_has_every_parameter_that_is_taken(server: Server):
    schema = server.http.get("/openapi.json").json()["paths"]["/v2/models/{model}/infer"]["post"]["requestBody"]
    known = schema["content"]["application/json"]["schema"]["properties"]["parameters"]["properties"]
    assert {*known} == {*PARAMETERS, *IGNORED}


# MLServer and KServe


@pytest.mark.parametrize("number", range(5))
def test_what_mlservers_codecs_send_is_answered(server: Server, number: int):
    sent = recorded("mlserver")[number]
    found = answered(send(server, sent))
    if "image" in sent["what"]:
        shades = (np.arange(16) * 16).reshape(4, 4)
        x = np.stack([shades, 255 - shades])[:, None].astype(np.uint8)
        tensor = {"name": "x", "shape": [2, 1, 4, 4], "datatype": "UINT8", "data": x.ravel().tolist()}
        alike = answered(server.http.post("/v2/models/pictures/infer", json={"inputs": [tensor]}))
    else:
        given = {"parameters": {"task": ["fruit", "trees"]}} if "tasks" in sent["what"] else {}
        alike = truth(server, **given)
    assert found == {name: alike[name] for name in found}
    assert found


def test_what_kserves_client_sends_is_answered(server: Server):
    requests = recorded("kserve")
    assert len(requests) == 7
    for sent in requests:
        found = send(server, sent)
        assert found.status_code == 200, (sent["path"], found.text)
        if sent["path"] == INFER:
            body = base64.b64decode(sent["body"])
            given = {"task": ["fruit", "trees"]} if b'"name":"task"' in body else {}
            given = {"task": "fruit"} if b'"task":"fruit"' in body else given
            alike = truth(server, **({"parameters": given} if given else {}))
            values = answered(found)
            assert values
            for name, value in values.items():
                decoded = [one.decode() if isinstance(one, bytes) else one for one in value]
                assert decoded == alike[name]


def test_images_are_taken_as_base64_whether_or_not_the_client_says_so(server: Server):
    image = png(pixels(X)[0])
    text = base64.b64encode(image).decode()

    def ask(data: str, **parameters: str) -> httpx.Response:
        entry = {"name": "image", "shape": [1], "datatype": "BYTES", "data": [data], "parameters": parameters}
        return server.http.post("/v2/models/pictures/infer", json={"inputs": [entry]})

    assert answered(ask(text)) == answered(ask(text, content_type="base64"))
    wrong = ask("no base64!", content_type="base64")
    assert wrong.status_code == 400
    assert "'image'" in wrong.json()["error"]


def test_null_stands_for_a_missing_number_as_pandas_has_it(server: Server):
    content = request(X)
    content["inputs"][3]["data"][2] = None
    wrong = server.http.post(INFER, json=content)
    assert wrong.status_code == 400
    assert "row 2 of input 'f3'" in wrong.json()["error"]


def test_values_are_quoted_briefly_however_deep_or_large_they_are():
    deep = b'{"a":' * 900 + b"1" + b"}" * 900
    for text in (
        b'{"id": ' + deep + b"}",
        b'{"inputs": [' + deep + b"]}",
        b'{"parameters": ' + b"[" * 900 + b"]" * 900 + b"}",
    ):
        with pytest.raises(Exception, match="give") as told:
            read_request(text, None, Limits())
        assert len(str(told.value)) < 300
