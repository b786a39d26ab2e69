"""A folder of differences is exported with the trained network named in a word; another one is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import ibpwf
import tiny_backbone
from hugging_face_networks import CONFIGURATIONS, SETTINGS, batch, labels
from ibpwf import Learner, Settings
from ibpwf.backbones.catalog import BACKBONES
from ibpwf.errors import IBPWFError, InputError
from ibpwf.models import mlp
from processes import Finished

FROZEN = Settings(base="frozen", epochs=2, finetune_epochs=1, batch_size=8, learning_rate=0.01)


def rows() -> tuple[Tensor, Tensor]:
    return torch.randn(24, 6, generator=torch.Generator().manual_seed(1)), torch.arange(24) % 2


def network(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return mlp(6, [8], 2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    learner = Learner(network(), FROZEN, device="cpu")
    learner.learn(*rows(), task="day")
    learner.save(tmp_path / "model")
    save_file(network().state_dict(), tmp_path / "base.safetensors")
    save_file(network(seed=1).state_dict(), tmp_path / "other.safetensors")
    ibpwf.export(learner, "day", "peft", tmp_path / "expected")
    return tmp_path


def test_a_file_of_weights_is_the_base_of_a_network_that_the_folder_describes(
    folder: Path, command: Callable[..., Finished]
) -> None:
    words = ("export", "model", "--to", "peft", "--task", "day", "-o", "adapter", "--base", "base.safetensors")
    done = command(*words, cwd=folder)
    assert done.code == 0, done.err
    expected, found = (load_file(folder / name / "adapter_model.safetensors") for name in ("expected", "adapter"))
    assert {*expected} == {*found}
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.parametrize(
    ("base", "words"),
    [
        ((), "--base"),
        (("--base", "other.safetensors"), "differences from another network"),
        (("--base", "none.safetensors"), "which is no file, no folder and no backbone"),
        (("--base", "."), "has no config.json"),
        (("--base", "expected/adapter_model.safetensors"), "holds other weights"),
    ],
)
def test_a_missing_or_another_base_is_refused_in_a_sentence(
    base: tuple[str, ...], words: str, folder: Path, command: Callable[..., Finished]
) -> None:
    done = command("export", "model", "--to", "peft", "--task", "day", "-o", "adapter", *base, cwd=folder)
    assert done.code == 2
    assert words in " ".join(done.err.split())
    assert not (folder / "adapter").exists()


def test_a_base_is_for_folders_that_need_one(folder: Path, learnt_folder: Path) -> None:
    with pytest.raises(InputError, match="holds its whole network"):
        ibpwf.export(learnt_folder, "0/1", "safetensors", folder / "a.safetensors", base="mobilenet-v2")
    learner = Learner.load(folder / "model", net=network(), device="cpu")
    with pytest.raises(InputError, match="base is for model folders"):
        ibpwf.export(learner, "day", "peft", folder / "adapter", base="mobilenet-v2")
    ibpwf.export(folder / "model", "day", "peft", folder / "adapter", base=network())


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp(6, [8], 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x)
        return y


def test_weights_of_a_class_of_your_own_are_refused_with_the_call_that_works(folder: Path) -> None:
    learner = Learner(Own(), FROZEN, device="cpu")
    learner.learn(*rows(), task="day")
    learner.save(folder / "own")
    with pytest.raises(InputError, match="network is of your own class"):
        ibpwf.export(folder / "own", "day", "peft", folder / "adapter", base=folder / "base.safetensors")


def test_a_backbone_is_the_base_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IBPWF_DATA", str(tmp_path / "cache"))
    monkeypatch.setitem(BACKBONES, tiny_backbone.NAME, tiny_backbone.tiny_network(tiny_backbone.Shelf()))
    backbone = ibpwf.backbones.load(tiny_backbone.NAME)
    net = nn.Sequential(backbone, nn.Linear(backbone.width, 2))
    learner = Learner(net, FROZEN.replace(heads="per-task"), device="cpu")
    x = torch.randn(24, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    learner.learn(x, torch.arange(24) % 2, task="day")
    learner.save(tmp_path / "model")
    ibpwf.export(learner, "day", "peft", tmp_path / "expected")
    done = ibpwf.export(tmp_path / "model", "day", "peft", tmp_path / "adapter", base=tiny_backbone.NAME)
    for file in done.files:
        assert file.read_bytes() == (tmp_path / "expected" / file.name).read_bytes()


def test_a_folder_of_transformers_is_the_base(transformers: ModuleType, tmp_path: Path) -> None:
    kind = getattr(transformers, CONFIGURATIONS["bert"][0])
    net = kind(kind.config_class(**CONFIGURATIONS["bert"][1]))
    net.save_pretrained(tmp_path / "bert")
    learner = Learner(net, SETTINGS.replace(base="frozen"), device="cpu")
    learner.learn(batch("bert"), labels(0), task="mails")
    learner.save(tmp_path / "model")
    done = ibpwf.export(tmp_path / "model", "mails", "peft", tmp_path / "adapter", base=tmp_path / "bert")
    ibpwf.export(learner, "mails", "peft", tmp_path / "expected")
    tensors = [load_file(tmp_path / name / "adapter_model.safetensors") for name in ("adapter", "expected")]
    assert all(torch.equal(tensors[0][name], tensors[1][name]) for name in tensors[1])
    assert done.about["task"] == "mails"
    (tmp_path / "bert" / "config.json").write_text('{"architectures": ["os.system"]}')
    with pytest.raises(IBPWFError, match="names no network of transformers"):
        ibpwf.export(tmp_path / "model", "mails", "peft", tmp_path / "adapter", base=tmp_path / "bert")
