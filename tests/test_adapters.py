"""An adapter that peft has saved becomes a task like any other, with peft's own answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import ibpwf
from ibpwf import Learner, Settings, factorize
from ibpwf.errors import IBPWFError, InputError
from peft_networks import SETTINGS, in_peft, rows, taught, trained
from zoos import imported

# A class of warnings that another process of the tests would have to import.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

HEADS = {"mlp": "4", "conv": "10", "nested": "head", "bert": "bert.classifier"}
LAYERS = {
    "mlp": ["0", "2"],
    "conv": ["0", "4", "7"],
    "nested": ["fc", "block.fc"],
    "bert": ["query", "value", "dense"],
}


def saved_by_peft(kind: str, folder: Path, **options: Any) -> nn.Module:
    """A network with an adapter of random numbers, which peft has saved in a folder."""
    peft = imported("peft")
    options = {"target_modules": LAYERS[kind], "modules_to_save": [HEADS[kind]], "r": 3, "lora_alpha": 6} | options
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(9)
        model: nn.Module = peft.get_peft_model(trained(kind), peft.LoraConfig(**options))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name or "modules_to_save" in name:
                    parameter.add_(0.3 * torch.randn(parameter.shape))
    model.save_pretrained(str(folder))
    return model.eval()


def empty(kind: str, **changes: Any) -> Learner:
    return taught(kind, tasks=0, **changes)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("mlp", {}),
        ("mlp", {"use_rslora": True}),
        ("mlp", {"rank_pattern": {"2": 5}, "alpha_pattern": {"2": 20, "0": 1}}),
        ("mlp", {"lora_bias": True}),
        ("mlp", {"modules_to_save": None}),
        ("conv", {"modules_to_save": ["10", "9"]}),
        ("nested", {"rank_pattern": {"block.fc": 4, "fc": 2}}),
        ("bert", {}),
    ],
)
@pytest.mark.parametrize("heads", ["shared", "per-task"])
def test_a_task_from_an_adapter_answers_as_peft_does(
    kind: str, options: dict[str, Any], heads: str, tmp_path: Path
) -> None:
    adapted = saved_by_peft(kind, tmp_path / "adapter", **options)
    learner = empty(kind, heads=heads)
    x, y = rows(kind, 2)
    task = learner.learn_adapter(tmp_path / "adapter", x, y, "given")
    expected = adapted(x).detach()
    torch.testing.assert_close(learner.logits(x, "given"), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(learner.merge("given")(x).detach(), expected, rtol=1e-5, atol=1e-5)
    right = 100 * float((expected.argmax(1) == y).double().mean())
    assert task.training_accuracy == pytest.approx(right)


@pytest.mark.parametrize("kind", ["mlp", "conv", "nested"])
@pytest.mark.parametrize("heads", ["shared", "per-task"])
def test_exported_and_taken_back_a_task_answers_the_same(kind: str, heads: str, tmp_path: Path) -> None:
    learner = taught(kind, heads=heads)
    ibpwf.export(learner, "1", "peft", tmp_path / "adapter")
    other = empty(kind, heads=heads)
    other.learn_adapter(tmp_path / "adapter", *rows(kind, 1))
    x = rows(kind, 6)[0]
    torch.testing.assert_close(other.logits(x, 0), learner.logits(x, "1"), rtol=1e-5, atol=1e-5)
    ibpwf.export(other, 0, "peft", tmp_path / "again")
    torch.testing.assert_close(
        in_peft(trained(kind), tmp_path / "again")(x).detach(), learner.logits(x, "1"), rtol=1e-5, atol=1e-5
    )


def mixed(tmp_path: Path, **changes: Any) -> Learner:
    """A learned task, one from an adapter, and a learned one after it."""
    saved_by_peft("mlp", tmp_path / "adapter")
    learner = empty("mlp", **changes)
    learner.learn(*rows("mlp", 0), task="first")
    learner.learn_adapter(tmp_path / "adapter", *rows("mlp", 5), "given")
    learner.learn(*rows("mlp", 10), task="last")
    return learner


def test_it_is_a_task_like_any_other(tmp_path: Path) -> None:
    learner = mixed(tmp_path)
    x = rows("mlp", 7)[0]
    before = {task.name: learner.logits(x, task.name) for task in learner.tasks}
    torch.testing.assert_close(
        before["given"], in_peft(trained("mlp"), tmp_path / "adapter")(x).detach(), rtol=1e-5, atol=1e-5
    )
    inferred = learner.predict(rows("mlp", 5)[0])
    assert float((inferred.task == 1).double().mean()) > 0.9
    assert learner.predict(x, task="given", posterior_samples=5).mutual_information is not None
    learner.save(tmp_path / "model")
    loaded = Learner.load(tmp_path / "model", net=trained("mlp"), device="cpu")
    assert all(torch.equal(loaded.logits(x, name), old) for name, old in before.items())
    for each in (learner, loaded):
        each.learn(*rows("mlp", 12), task="next")
    assert torch.equal(loaded.logits(x, "next"), learner.logits(x, "next"))
    assert all(torch.equal(learner.logits(x, name), old) for name, old in before.items())
    learner.forget("given")
    assert all(torch.equal(learner.logits(x, name), before[name]) for name in ("first", "last"))


def test_a_router_with_held_out_rows_takes_it_too(tmp_path: Path) -> None:
    learner = mixed(tmp_path, inference="router", validation_fraction=0.2, **{"inference.features": "random"})
    assert learner.method.calibrations[1] is not None
    assert float((learner.predict(rows("mlp", 5)[0]).task == 1).double().mean()) > 0.8


def test_its_factors_are_certain_and_the_others_are_not_in_doubt(tmp_path: Path) -> None:
    saved_by_peft("mlp", tmp_path / "adapter", target_modules=["0"], modules_to_save=None)
    learner = empty("mlp")
    learner.learn(*rows("mlp", 0), task="first")
    learner.learn_adapter(tmp_path / "adapter", *rows("mlp", 5), "given")
    first, given = learner.model.tasks
    for name, vectors in given.vectors.items():
        chosen = given.selected[name]
        assert int(chosen.sum()) == (3 if name == "0" else 0)
        assert torch.equal(chosen, learner.model.prior.selected(vectors)) or name != "0"
        assert not bool((chosen[: len(first.selected[name])] & first.selected[name]).any())
        assert torch.equal(vectors.strength[chosen], torch.full((int(chosen.sum()),), 2.0))
        assert bool((vectors.logit[chosen].sigmoid() > 0.98).all())
        assert bool((vectors.logit[~chosen].sigmoid() < 0.5).all())
        assert torch.equal(vectors.c[: len(first.vectors[name])], first.vectors[name].c)
    network = learner.model.start_task(3, torch.Generator().manual_seed(0))
    assert bool(network.kl().isfinite())
    assert learner.method.use(1)["2"] == {
        "active": 0,
        "new": 0,
        "reused": 0,
        "total": learner.method.use(0)["2"]["total"],
    }


def test_a_first_task_may_be_an_adapter_of_a_few_layers(tmp_path: Path) -> None:
    adapted = saved_by_peft("mlp", tmp_path / "adapter", target_modules=["2"], modules_to_save=None)
    learner = empty("mlp")
    x, y = rows("mlp", 5)
    learner.learn_adapter(tmp_path / "adapter", x, y, "given")
    learner.save(tmp_path / "model")
    learner = Learner.load(tmp_path / "model", net=trained("mlp"), device="cpu")
    learner.learn(*rows("mlp", 0), task="next")
    torch.testing.assert_close(learner.logits(x, "given"), adapted(x).detach(), rtol=1e-5, atol=1e-5)
    ibpwf.export(learner, "given", "peft", tmp_path / "again")
    assert json.loads((tmp_path / "again" / "adapter_config.json").read_text())["target_modules"] == ["2"]


def written(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A small adapter for the perceptron, by hand."""
    folder.mkdir()
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["0"], "bias": "none"}
    tensors = {
        "base_model.model.0.lora_A.weight": torch.ones(2, 8),
        "base_model.model.0.lora_B.weight": torch.ones(16, 2),
    }
    return config, tensors


LAYER = "base_model.model.0"


@pytest.mark.parametrize(
    ("config", "tensors", "message"),
    [
        ({"peft_type": "IA3"}, {}, "of an adapter of type IA3; only LORA"),
        ({"peft_type": None}, {}, "field 'peft_type' is None"),
        ({"bias": "all"}, {}, "has bias 'all', which changes the base itself"),
        ({"use_dora": True}, {}, "uses use_dora"),
        ({"trainable_token_indices": [1]}, {}, "uses trainable_token_indices"),
        ({"init_lora_weights": "pissa"}, {}, "init_lora_weights 'pissa', which changes the base's weights"),
        ({"r": 3}, {}, "has 2 factors of layer '0', and its config says 3"),
        ({"r": 0}, {}, "field 'r' is 0"),
        ({"target_modules": ["0", "2"]}, {}, "has no factors of its target '2'"),
        ({}, {f"{LAYER}.lora_B.weight": None}, "has but one of lora_A and lora_B of layer '0'"),
        ({}, {f"{LAYER}.lora_B.weight": torch.ones(15, 2)}, "for a layer '0' of 8×15, and the network's is 8×16"),
        ({}, {f"{LAYER}.lora_A.weight": torch.full((2, 8), torch.nan)}, "holds NaN or infinite"),
        ({}, {"other": torch.ones(1)}, "has the tensor 'other', which is no factor"),
        ({}, {"base_model.model.0.lora_embedding_A": torch.ones(1)}, "which is no factor"),
        ({}, {"base_model.model.9.weight": torch.ones(1)}, r"has the tensor '9\.weight', which the network has not"),
        (
            {},
            {"base_model.model.4.bias": torch.ones(4)},
            "has '4.bias' of shape .4., and a task of 3 classes needs .3.",
        ),
        (
            {},
            {
                "base_model.model.9.lora_A.weight": torch.ones(2, 8),
                "base_model.model.9.lora_B.weight": torch.ones(8, 2),
            },
            "has factors of layer '9', which the network has not",
        ),
    ],
)
def test_what_is_no_adapter_of_this_base_is_refused_in_a_sentence(
    config: dict[str, Any], tensors: dict[str, Tensor | None], message: str, tmp_path: Path
) -> None:
    whole, parts = written(tmp_path / "adapter")
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(whole | config))
    kept = {name: value for name, value in {**parts, **tensors}.items() if value is not None}
    save_file(kept, tmp_path / "adapter" / "adapter_model.safetensors")
    learner = empty("mlp")
    with pytest.raises(InputError, match=message):
        learner.learn_adapter(tmp_path / "adapter", *rows("mlp"))
    assert learner.tasks == ()


def test_files_that_are_missing_or_damaged_are_named(tmp_path: Path) -> None:
    config, tensors = written(tmp_path / "adapter")
    learner = empty("mlp")
    with pytest.raises(IBPWFError, match="there is no such file or folder"):
        learner.learn_adapter(tmp_path / "nowhere", *rows("mlp"))
    with pytest.raises(InputError, match=r"has no adapter_config\.json"):
        learner.learn_adapter(tmp_path / "adapter", *rows("mlp"))
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(config))
    (tmp_path / "adapter" / "adapter_model.bin").write_bytes(b"anything")
    with pytest.raises(InputError, match=r"adapter_model\.bin may run code"):
        learner.learn_adapter(tmp_path / "adapter", *rows("mlp"))
    save_file(tensors, tmp_path / "adapter" / "adapter_model.safetensors")
    data = (tmp_path / "adapter" / "adapter_model.safetensors").read_bytes()
    (tmp_path / "adapter" / "adapter_model.safetensors").write_bytes(data[:-8])
    with pytest.raises(IBPWFError, match="is not a whole safetensors file"):
        learner.learn_adapter(tmp_path / "adapter", *rows("mlp"))


def test_a_base_with_other_weights_is_refused_where_our_own_export_tells_it(tmp_path: Path) -> None:
    ibpwf.export(taught("mlp"), "0", "peft", tmp_path / "adapter")
    net = trained("mlp")
    with torch.no_grad():
        net.get_parameter("0.weight")[0, 0] += 1e-3
    with pytest.raises(InputError, match="difference from another network: the trained weight of layer '0'"):
        taught("mlp", net, tasks=0).learn_adapter(tmp_path / "adapter", *rows("mlp"))


def test_models_that_cannot_take_it_say_why(tmp_path: Path) -> None:
    saved_by_peft("mlp", tmp_path / "adapter")
    data = rows("mlp")
    with pytest.raises(InputError, match="this model keeps none; learn with base='frozen'"):
        Learner(trained("mlp"), Settings(), device="cpu").learn_adapter(tmp_path / "adapter", *data)
    few = Learner(factorize(trained("mlp"), base="frozen", include=["0", "4"]), SETTINGS, device="cpu")
    with pytest.raises(InputError, match="layer '2', which is not factorized here; include it"):
        few.learn_adapter(tmp_path / "adapter", *data)
    with pytest.raises(InputError, match="layer '0' would hold 3 factors, and max_factors is 2"):
        empty("mlp", max_factors=2).learn_adapter(tmp_path / "adapter", *data)
    still = trained("mlp").requires_grad_(False)
    with pytest.raises(InputError, match=r"changes '4\.bias', which is frozen here for all tasks"):
        taught("mlp", still, tasks=0).learn_adapter(tmp_path / "adapter", *data)
    taught("mlp", still, tasks=0, heads="per-task").learn_adapter(tmp_path / "adapter", *data)
    saved_by_peft("conv", tmp_path / "grouped", target_modules=["3"])
    with pytest.raises(InputError, match="layer '3', a Conv2d whose weight peft's factors do not change"):
        empty("conv").learn_adapter(tmp_path / "grouped", *rows("conv"))
    saved_by_peft("mlp", tmp_path / "headless", modules_to_save=None)
    with pytest.raises(InputError, match="brings no head, and the network's own '4' has 3 outputs for 2 classes"):
        empty("mlp", heads="per-task").learn_adapter(tmp_path / "headless", *rows("mlp", classes=2), classes=[0, 1])


def test_labels_must_say_which_output_is_which_class(tmp_path: Path) -> None:
    saved_by_peft("mlp", tmp_path / "adapter")
    x, y = rows("mlp", classes=2)
    learner = empty("mlp")
    with pytest.raises(InputError, match=r"the adapter has 3 outputs and y has 2 labels; say with classes=\[...\]"):
        learner.learn_adapter(tmp_path / "adapter", x, y + 4)
    with pytest.raises(InputError, match=r"classes is \[5, 4\]; give the label of each output once, in rising order"):
        learner.learn_adapter(tmp_path / "adapter", x, y + 4, classes=[5, 4])
    with pytest.raises(InputError, match=r"classes is \[4, 6\], and y has the labels \[4, 5\]"):
        learner.learn_adapter(tmp_path / "adapter", x, y + 4, classes=[4, 6])
    learner.learn_adapter(tmp_path / "adapter", x, y + 4, "two", classes=[4, 5])
    assert learner.tasks[0].classes == (4, 5)
    assert {*learner.predict(x, task="two").labels.tolist()} <= {4, 5}


def test_half_precision_adapters_are_read(tmp_path: Path) -> None:
    saved_by_peft("mlp", tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    save_file({name: tensor.bfloat16() for name, tensor in load_file(file).items()}, file)
    learner = empty("mlp")
    x, y = rows("mlp", 2)
    learner.learn_adapter(tmp_path / "adapter", x, y)
    expected = in_peft(trained("mlp"), tmp_path / "adapter")(x).detach()
    torch.testing.assert_close(learner.logits(x, 0), expected, rtol=1e-2, atol=1e-2)
