"""`ibpwf data list`, `fetch` and `verify`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_set import CONTENT, NAME, Shelf

from processes import Finished

Invoke = Callable[..., Finished]
IMAGES = "train-images-idx3-ubyte"


def test_list_shows_every_set_and_whether_it_is_cached(tiny, root: Path, invoke: Invoke) -> None:
    tiny(Shelf())
    found = {one["name"]: one for one in json.loads(invoke("data", "--json").out)["data_sets"]}
    assert {"mnist", "fashion-mnist", "cifar10", "digits", NAME} <= set(found)
    assert (found[NAME]["cached"], found["digits"]["cached"]) == (False, True)
    assert invoke("data", "fetch", NAME).code == 0
    line = next(line for line in invoke("data", "list").out.splitlines() if line.startswith(NAME))
    assert "20 + 6" in line
    assert " yes " in line


def test_fetch_puts_the_files_into_the_cache_and_again_does_so_anew(
    tiny, tmp_path: Path, root: Path, invoke: Invoke
) -> None:
    shelf = Shelf()
    tiny(shelf)
    (tmp_path / "mine").mkdir()
    for name, content in CONTENT.items():
        (tmp_path / "mine" / name).write_bytes(content)
    assert invoke("data", "fetch", NAME, "--from", tmp_path / "mine").code == 0
    assert shelf.asked == 0
    assert json.loads(invoke("data", "fetch", NAME, "--again", "--json").out)["folder"] == str(root / NAME)
    assert shelf.asked == 1
    assert (root / NAME / IMAGES).read_bytes() == CONTENT[IMAGES]


def test_verify_names_every_file_and_fails_on_a_corrupt_one(tiny, root: Path, invoke: Invoke) -> None:
    tiny(Shelf())
    invoke("data", "fetch", NAME)
    good = invoke("data", "verify", NAME)
    assert (good.code, good.out.count("ok ")) == (0, len(CONTENT))
    (root / NAME / IMAGES).write_bytes(b"wrong")
    (root / NAME / "t10k-labels-idx1-ubyte").unlink()
    bad = invoke("data", "verify", NAME)
    assert bad.code == 2
    assert f"CORRUPT  {IMAGES}" in bad.out
    assert "MISSING  t10k-labels-idx1-ubyte" in bad.out
    assert f"ibpwf data fetch {NAME}" in bad.err
    files = json.loads(invoke("data", "verify", NAME, "--json").out)["files"]
    assert {one["name"] for one in files if not one["ok"]} == {IMAGES, "t10k-labels-idx1-ubyte"}
    assert invoke("data", "fetch", NAME).code == 0
    assert invoke("data", "verify", NAME).code == 0


def test_a_path_or_name_that_does_not_exist_is_named(tiny, tmp_path: Path, invoke: Invoke) -> None:
    tiny(Shelf())
    for words, named in (
        (("verify", NAME, "--from", tmp_path / "nowhere"), "nowhere"),
        (("fetch", "minst"), "Did you mean 'mnist'"),
    ):
        done = invoke("data", *words)
        assert done.code == 2
        assert named in done.err


@pytest.mark.parametrize("command", ["fetch", "verify"])
def test_digits_have_nothing_to_fetch_or_check(command: str, invoke: Invoke) -> None:
    assert invoke("data", command, "digits").code == 0
