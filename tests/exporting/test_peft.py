"""A task's adapter in peft answers as the task does, from files that are written without peft."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import ibpwf
from ibpwf import Learner, Settings, factorize, models
from ibpwf.cli.export import show
from ibpwf.errors import IBPWFError, InputError
from ibpwf.exporting import peft as writer
from peft_networks import SETTINGS, in_peft, rows, taught, trained
from processes import Finished

# A class of warnings that another process of the tests would have to import.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

KINDS = ["mlp", "conv", "attentive", "nested", "bert"]


def config_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "adapter_config.json").read_text())
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_peft_gives_the_same_logits_with_the_adapter_on_the_base(kind: str, tmp_path: Path) -> None:
    learner = taught(kind)
    x = rows(kind, 5)[0]
    for task in ("0", "1"):
        done = ibpwf.export(learner, task, "peft", tmp_path / task)
        assert {*done.files} == {*(tmp_path / task).iterdir()}
        adapted = in_peft(trained(kind), tmp_path / task)
        torch.testing.assert_close(adapted(x).detach(), learner.logits(x, task), rtol=1e-5, atol=1e-5)
    apart = (learner.logits(x, "0") - trained(kind).eval()(x).detach()).abs().max()
    assert float(apart) > 1e-3


@pytest.mark.parametrize("kind", ["mlp", "conv", "nested"])
def test_factors_multiply_to_the_tasks_difference_from_the_base(kind: str, tmp_path: Path) -> None:
    learner = taught(kind)
    ibpwf.export(learner, "1", "peft", tmp_path / "adapter")
    tensors, config = load_file(tmp_path / "adapter" / "adapter_model.safetensors"), config_of(tmp_path / "adapter")
    net, state = trained(kind), learner.model.state(1)
    assert config["lora_alpha"] == config["r"]
    assert config["rank_pattern"] == config["alpha_pattern"]
    for layer in config["target_modules"]:
        a, b = (tensors[f"base_model.model.{layer}.lora_{side}.weight"].double().numpy() for side in "AB")
        weight = state[f"{layer}.weight"].double() - net.get_parameter(f"{layer}.weight").detach().double()
        product = b.reshape(len(b), -1) @ a.reshape(len(a), -1)
        np.testing.assert_allclose(product.reshape(weight.shape), weight.numpy(), rtol=0, atol=1e-6)
        assert len(a) == config["rank_pattern"][layer] == int(learner.model.tasks[1].selected[layer].sum())


def test_nothing_but_factors_is_written_where_all_else_is_frozen(tmp_path: Path) -> None:
    net = trained("mlp").requires_grad_(False)
    learner = taught("mlp", net)
    ibpwf.export(learner, "0", "peft", tmp_path / "adapter")
    config = config_of(tmp_path / "adapter")
    assert config["modules_to_save"] is None
    assert "lora_bias" not in config
    assert all(".lora_" in name for name in load_file(tmp_path / "adapter" / "adapter_model.safetensors"))
    x = rows("mlp", 4)[0]
    torch.testing.assert_close(in_peft(net, tmp_path / "adapter")(x), learner.logits(x, "0"), rtol=1e-5, atol=1e-5)


def test_a_layer_whose_name_ends_as_one_with_factors_is_left_alone(tmp_path: Path) -> None:
    model = factorize(trained("nested"), base="frozen", include=["fc", "head"])
    learner = Learner(model, SETTINGS, device="cpu")
    learner.learn(*rows("nested"), task="0")
    ibpwf.export(learner, "0", "peft", tmp_path / "adapter")
    tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert "base_model.model.fc.lora_A.weight" in tensors
    assert not any("block.fc.lora" in name for name in tensors)
    x = rows("nested", 4)[0]
    adapted = in_peft(trained("nested"), tmp_path / "adapter")
    torch.testing.assert_close(adapted(x).detach(), learner.logits(x, "0"), rtol=1e-5, atol=1e-5)


def test_a_head_of_the_tasks_own_fits_a_base_with_as_many_outputs(tmp_path: Path) -> None:
    learner = taught("mlp", tasks=0, heads="per-task")
    x, y = rows("mlp", 1, classes=5)
    learner.learn(x, y, task="five")
    done = ibpwf.export(learner, "five", "peft", tmp_path / "adapter")
    assert done.about["network"]["classes"] == 5
    net = trained("mlp")
    head = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)][-1]
    net.set_submodule(head, nn.Linear(12, 5))
    torch.testing.assert_close(
        in_peft(net, tmp_path / "adapter")(x).detach(), learner.logits(x, "five"), rtol=1e-5, atol=1e-5
    )


def test_of_a_task_with_turns_the_adapter_scores_the_image_as_it_is(tmp_path: Path) -> None:
    learner = taught("conv", tasks=0, heads="per-task", turns=4)
    learner.learn(*rows("conv"), task="0")
    done = ibpwf.export(learner, "0", "peft", tmp_path / "adapter")
    assert "unturned" in done.about["network"]["words"]
    x = rows("conv", 3)[0]
    merged = learner.merge("0")(x).detach()
    torch.testing.assert_close(
        in_peft(trained("conv"), tmp_path / "adapter")(x).detach(), merged, rtol=1e-5, atol=1e-5
    )


def test_peft_is_not_needed_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("peft", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)
    ibpwf.export(taught("mlp", tasks=1), "0", "peft", tmp_path / "adapter")
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()


def test_a_folder_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = taught("mlp")
    target = tmp_path / "adapter"
    ibpwf.export(learner, "0", "peft", target)
    before = {file.name: file.read_bytes() for file in target.iterdir()}
    ibpwf.export(learner, "0", "peft", target)  # the same again
    with pytest.raises(InputError, match="exists already"):
        ibpwf.export(learner, "1", "peft", target)

    def broken(path: Path, content: bytes) -> None:
        if path.name == "adapter_config.json":
            raise OSError(28, "No space left on device")
        path.write_bytes(content)

    with monkeypatch.context() as patched:
        patched.setattr(writer, "write_bytes", broken)
        with pytest.raises(IBPWFError, match="the disk is full"):
            ibpwf.export(learner, "1", "peft", target, overwrite=True)
    assert {file.name: file.read_bytes() for file in target.iterdir()} == before
    assert [file.name for file in tmp_path.iterdir()] == ["adapter"]
    ibpwf.export(learner, "1", "peft", target, overwrite=True)
    assert {file.name: file.read_bytes() for file in target.iterdir()} != before
    assert [file.name for file in tmp_path.iterdir()] == ["adapter"]
    (target / "mine.txt").write_text("keep")
    with pytest.raises(InputError, match=r"holds 'mine\.txt', which is no adapter's file"):
        ibpwf.export(learner, "1", "peft", target, overwrite=True)


class Tokens(nn.Module):
    """A parameter that belongs to the network itself."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(8))
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(x + self.token)
        return logits


def test_what_peft_cannot_hold_is_refused_with_the_remedy(tmp_path: Path) -> None:
    plain = Learner(models.mlp(8, [6], 3), Settings(epochs=1, finetune_epochs=0), device="cpu")
    plain.learn(*rows("mlp"), task="0")
    with pytest.raises(InputError, match=r"this model keeps no such network; learn with base='frozen'"):
        ibpwf.export(plain, "0", "peft", tmp_path / "adapter")
    loose = taught("mlp", Tokens(), tasks=1)
    with pytest.raises(InputError, match=r"a parameter 'token' of its own.* freeze it before factorize"):
        ibpwf.export(loose, "0", "peft", tmp_path / "adapter")
    with pytest.raises(InputError, match="name the task"):
        ibpwf.export(taught("mlp", tasks=1), None, "peft", tmp_path / "adapter")
    with pytest.raises(InputError, match="is no folder to make 'adapter' in"):
        ibpwf.export(taught("mlp", tasks=1), "0", "peft", tmp_path / "nowhere" / "adapter")
    assert list(tmp_path.iterdir()) == []


def test_the_command_says_how_to_load_it_and_what_it_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: Callable[..., Finished]
) -> None:
    learner = taught("mlp", tasks=1)
    show(ibpwf.export(learner, "0", "peft", tmp_path / "adapter"), "peft")
    told = capsys.readouterr().out
    assert f"Wrote {tmp_path / 'adapter'}" in told
    assert "peft.PeftModel.from_pretrained(net," in told
    learner.save(tmp_path / "model")
    done = command("export", "model", "--task", "0", "--to", "peft")
    assert done.code == 2
    assert "--base" in done.err
