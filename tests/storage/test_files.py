"""Single files, JSON, journals and tensors, come back as they went, or say what is wrong with them."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from disk_faults import calls_of, fault
from ibpwf.errors import StoreError
from ibpwf.storage.files import (
    append_jsonl,
    decode_tensors,
    encode_tensors,
    read_json,
    read_jsonl,
    write_json,
    write_text,
)


def test_a_file_that_cannot_be_replaced_stays_and_no_temporary_file_does(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"old": 1})
    calls = calls_of(lambda: write_json(path, {"old": 1}))
    for at in range(1, calls + 1):
        with (
            contextlib.suppress(StoreError),
            fault(at, lambda: OSError(errno.ENOSPC, "full"), False),
        ):
            write_json(path, {"new": 2})
        assert read_json(path) in ({"old": 1}, {"new": 2})
        assert os.listdir(tmp_path) == ["a.json"]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=5,
    )
)
@settings(max_examples=40, deadline=None)
def test_json_comes_back_as_it_went(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "value.json"
    write_json(path, value)
    assert read_json(path) == value


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": {"b": [1, float("nan")]}}, r"x.json.a.b\[1\] is nan"),
        ({"a": {1: 2}}, "x.json.a has the key 1"),
        ({"a": torch.ones(1)}, "x.json.a is a Tensor"),
    ],
)
def test_what_json_cannot_hold_is_refused_by_name(tmp_path: Path, value: Any, words: str) -> None:
    with pytest.raises(StoreError, match=words):
        write_json(tmp_path / "x.json", value)
    assert os.listdir(tmp_path) == []


def test_json_that_contains_itself_is_refused(tmp_path: Path) -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(StoreError, match="too deep"):
        write_json(tmp_path / "x.json", loop)


@pytest.mark.parametrize("data", [b"", b"{", b'{"a": 1', b"\xff\xfe", b"[" * 100_000, b"nonsense"])
def test_a_damaged_json_file_is_a_store_error(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.json").write_bytes(data)
    with pytest.raises(StoreError, match=r"x.json"):
        read_json(tmp_path / "x.json")


def test_a_name_that_just_fits_can_be_written(tmp_path: Path) -> None:
    write_text(tmp_path / ("x" * 255), "here")
    assert (tmp_path / ("x" * 255)).read_text() == "here"


def test_a_journal_cut_at_any_byte_keeps_its_whole_lines_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    lines = [{"epoch": 1, "text": "ü{}"}, {"epoch": 2}, {"epoch": 33}]
    for line in lines:
        append_jsonl(path, line)
    data = path.read_bytes()
    assert data.count(b"\n") == 3
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        left = read_jsonl(path)
        assert left == lines[: len(left)]
        assert len(left) >= data[:cut].count(b"\n")
        append_jsonl(path, {"next": 1})
        assert read_jsonl(path) == [*left, {"next": 1}]
        assert path.read_bytes().endswith(b"}\n")


def test_a_journal_line_that_fails_is_not_left_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "j.jsonl"
    append_jsonl(path, {"a": 1})
    with fault(2, lambda: OSError(errno.ENOSPC, "full"), False), pytest.raises(StoreError, match="full"):
        append_jsonl(path, {"a": 2})
    assert path.read_bytes() == b'{"a":1}\n'


def test_a_journal_damaged_in_the_middle_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "j.jsonl").write_text('{"a":1}\n{"a"\n{"a":3}\n')
    with pytest.raises(StoreError, match="line 2"):
        read_jsonl(tmp_path / "j.jsonl")
    with pytest.raises(StoreError, match="must be a dict"):
        append_jsonl(tmp_path / "j.jsonl", [1])  # type: ignore[arg-type]


def test_tensors_come_back_bit_for_bit() -> None:
    base = torch.randn(4, 6)
    base[0, 0], base[0, 1], base[0, 2] = float("nan"), float("-inf"), -0.0
    tensors = {
        "view": base.t(),
        "shared": base[1:],
        "parameter": torch.nn.Parameter(base[:2]),
        "scalar": torch.tensor(3),
        "empty": torch.zeros(0, 5, dtype=torch.float64),
        "flags": torch.tensor([True, False]),
        "half": torch.randn(3).bfloat16(),
    }
    back = decode_tensors(encode_tensors(tensors, "t"), "t")
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (back[name].shape, back[name].dtype) == (tensor.shape, tensor.dtype)
        wanted = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        assert torch.equal(back[name].reshape(-1).view(torch.uint8), wanted)
    back["scalar"].add_(1)  # what comes back can be written to


def test_the_same_tensors_give_the_same_bytes_in_any_order() -> None:
    tensors = {f"t{index}": torch.full((index,), float(index)) for index in range(9)}
    assert encode_tensors(tensors, "t") == encode_tensors(dict(reversed(tensors.items())), "t")
    assert decode_tensors(encode_tensors({}, "t"), "t") == {}


@pytest.mark.parametrize(
    "tensors",
    [
        {"__metadata__": torch.ones(1)},
        {1: torch.ones(1)},
        {"a": [1.0]},
        {"a": torch.ones(2).to_sparse()},
        {"a": torch.ones(1, device="meta")},
    ],
)
def test_what_safetensors_cannot_hold_is_refused(tensors: Any) -> None:
    with pytest.raises(StoreError, match="x: "):
        encode_tensors(tensors, "x")


def test_cut_tensors_are_a_store_error() -> None:
    data = encode_tensors({"a": torch.ones(3)}, "x")
    for cut in range(len(data)):
        with pytest.raises(StoreError, match="'x' is not a whole safetensors file"):
            decode_tensors(data[:cut], "x")
