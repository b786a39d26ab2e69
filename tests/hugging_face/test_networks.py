"""Networks of transformers as they are: they learn three tasks, forget nothing, and come back in their own class."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from hugging_face_networks import LABELS, NETWORKS, ROWS, SETTINGS, TEXTS, Taught, batch, labels
from ibpwf import Learner, factorize
from ibpwf.errors import InputError, StoreError

Build = Callable[..., nn.Module]
Teach = Callable[[str, str], Taught]
HEADS = {"bert": "classifier", "roberta": "classifier.out_proj", "gpt2": "score", "llama": "score"}
BASES = ("none", "frozen")


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("name", NETWORKS)
def test_an_old_task_answers_with_the_same_bits_after_new_ones(name: str, base: str, taught: Teach) -> None:
    found = taught(name, base)
    for task, logits in found.logits.items():
        assert torch.equal(found.learner.logits(batch(name, 9), task), logits)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_merged_network_has_its_own_class_and_names_and_gives_the_same_logits(
    name: str, base: str, taught: Teach, build: Build
) -> None:
    found, original = taught(name, base), build(name)
    for task, logits in found.logits.items():
        merged = found.learner.merge(task)
        assert type(merged) is type(original)
        assert [*merged.state_dict()] == [*original.state_dict()]
        with torch.no_grad():
            torch.testing.assert_close(merged(**batch(name, 9)).logits, logits, rtol=1e-5, atol=1e-5)
        own = copy.deepcopy(original).eval()
        own.load_state_dict(merged.state_dict())
        with torch.no_grad():
            torch.testing.assert_close(
                own(**batch(name, 9)).logits[:, : logits.shape[1]], logits, rtol=1e-5, atol=1e-5
            )


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_stored_learner_comes_back_to_the_bit_and_learns_on(
    name: str, base: str, taught: Teach, build: Build, tmp_path: Path
) -> None:
    found = taught(name, base)
    found.learner.fork().save(tmp_path / "model")
    again = Learner.load(tmp_path / "model", net=build(name), device="cpu")
    for task, logits in found.logits.items():
        assert torch.equal(again.logits(batch(name, 9), task), logits)
    x = batch(name, 9)
    assert torch.equal(again.predict(x).probabilities, found.learner.predict(x).probabilities)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_a_loaded_learner_learns_the_next_task_with_the_same_bits(
    name: str, taught: Teach, build: Build, tmp_path: Path
) -> None:
    here = taught(name, "frozen").learner.fork()
    here.save(tmp_path / "model")
    there = Learner.load(tmp_path / "model", net=build(name), device="cpu")
    for learner in (here, there):
        learner.learn(batch(name, 5), labels(5), task="fourth")
    assert torch.equal(here.logits(batch(name, 9), "fourth"), there.logits(batch(name, 9), "fourth"))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_task_beside_a_frozen_base_begins_as_the_network_itself(name: str, taught: Teach, build: Build) -> None:
    model = taught(name, "frozen").learner.model
    begun = model.start_task(LABELS, torch.Generator().manual_seed(0)).eval()
    packing = model.packing
    assert packing is not None
    with torch.no_grad():
        expected = build(name).eval()(**batch(name, 9)).logits
        torch.testing.assert_close(begun(packing.pack(batch(name, 9))), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", TEXTS)
def test_texts_that_are_filled_up_get_the_answers_of_texts_that_are_not(name: str, taught: Teach) -> None:
    learner = taught(name, "frozen").learner
    short = {"input_ids": torch.randint(2, 60, (ROWS, 4), generator=torch.Generator().manual_seed(1))}
    merged = learner.merge("third")
    with torch.no_grad():
        unfilled = merged(**short).logits
    torch.testing.assert_close(learner.logits(short, "third"), unfilled, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", TEXTS)
def test_the_head_is_the_layer_that_gives_the_class_scores(name: str, build: Build) -> None:
    assert factorize(build(name)).head == HEADS[name]


def test_attention_and_feed_forward_layers_of_gpt2_are_factorized_the_other_way_round(build: Build) -> None:
    net = build("gpt2")
    model = factorize(net)
    assert [name for name in model.layers if ".h.0." in name] == [
        f"transformer.h.0.{part}" for part in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    ]
    inner = model.layers["transformer.h.0.mlp.c_fc"]
    assert (inner.inputs, inner.outputs) == (32, 128)
    assert [*factorize(net, include="Conv1D").layers] == [name for name in model.layers if name != "score"]


def test_the_weights_of_gpt2_can_be_fitted_by_factors(build: Build) -> None:
    net = build("gpt2").eval()
    model = factorize(net, init="pretrained")
    assert max(fit.relative_error for fit in model.fits().values()) < 1e-5
    with torch.no_grad():
        torch.testing.assert_close(
            model.fitted_network()(**batch("gpt2")).logits, net(**batch("gpt2")).logits, rtol=1e-4, atol=1e-4
        )


def test_a_head_of_its_own_per_task_is_known_to_the_configuration_and_can_be_saved(
    build: Build, tmp_path: Path
) -> None:
    learner = Learner(build("bert"), SETTINGS.replace(base="frozen", heads="per-task"), device="cpu")
    learner.learn(batch("bert"), labels(0), task="two")
    learner.learn(batch("bert"), torch.arange(ROWS) % 5, task="five")
    merged = learner.merge("five")
    assert merged.config.num_labels == merged.num_labels == 5
    merged.save_pretrained(tmp_path / "merged")
    again = type(merged).from_pretrained(tmp_path / "merged").eval()
    with torch.no_grad():
        torch.testing.assert_close(
            again(**batch("bert")).logits, learner.logits(batch("bert"), "five"), rtol=1e-5, atol=1e-5
        )


def test_embeddings_beside_a_frozen_base_are_neither_trained_nor_stored(taught: Teach, tmp_path: Path) -> None:
    learner = taught("bert", "frozen").learner
    words = learner.model.net.get_parameter("bert.embeddings.word_embeddings.weight")
    for task in learner.model.tasks:
        assert task.own["bert.embeddings.word_embeddings.weight"].data_ptr() == words.data_ptr()
    learner.fork().save(tmp_path / "model")
    stored = sum(file.stat().st_size for file in (tmp_path / "model").rglob("*.safetensors"))
    free = taught("bert", "none").learner
    free.fork().save(tmp_path / "free")
    assert (
        stored < sum(file.stat().st_size for file in (tmp_path / "free").rglob("*.safetensors")) - 4 * words.numel()
    )


def test_another_base_with_the_same_shapes_is_refused(taught: Teach, build: Build, tmp_path: Path) -> None:
    taught("bert", "frozen").learner.fork().save(tmp_path / "model")
    other = build("bert")
    with torch.no_grad():
        other.bert.embeddings.word_embeddings.weight[0, 0] += 1
    with pytest.raises(StoreError, match="differences from another network"):
        Learner.load(tmp_path / "model", net=other)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention_may_be_calculated_either_way(attention: str, build: Build) -> None:
    learner = Learner(build("bert", attn_implementation=attention), SETTINGS.replace(base="frozen"), device="cpu")
    learner.learn(batch("bert"), labels(0), task="one")
    with torch.no_grad():
        torch.testing.assert_close(
            learner.merge("one")(**batch("bert", 9)).logits,
            learner.logits(batch("bert", 9), "one"),
            atol=1e-5,
            rtol=1e-5,
        )


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_gradient_checkpointing_changes_nothing(name: str, build: Build) -> None:
    logits = []
    for checkpointed in (False, True):
        net = build(name)
        if checkpointed:
            net.gradient_checkpointing_enable()
        learner = Learner(net, SETTINGS.replace(base="frozen", learning_rate=0.01), device="cpu")
        learner.learn(batch(name), labels(0), task="one")
        logits.append(learner.logits(batch(name, 9), "one"))
    torch.testing.assert_close(*logits, rtol=1e-5, atol=1e-5)


def test_a_compiled_network_learns_what_it_learns_as_it_is(build: Build) -> None:
    logits = []
    for compiled in (False, True):
        net = build("bert", num_hidden_layers=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        given = torch.compile(net, backend="eager", fullgraph=True) if compiled else net
        learner = Learner(given, SETTINGS.replace(base="frozen", learning_rate=0.01), device="cpu")
        learner.learn(batch("bert"), labels(0), task="one")
        one = learner.logits(batch("bert", 9), "one")
        learner.learn(batch("bert", 1), labels(1), task="two")
        assert torch.equal(learner.logits(batch("bert", 9), "one"), one)
        logits.append(learner.logits(batch("bert", 9), "two"))
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-5)


def test_in_bfloat16_a_task_begins_as_in_full_precision(taught: Teach) -> None:
    model = taught("bert", "frozen").learner.model
    assert model.packing is not None
    begun = model.start_task(LABELS, torch.Generator().manual_seed(0)).eval()
    x = model.packing.pack(batch("bert", 9))
    expected = begun(x)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = begun(x)
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.float(), expected, rtol=0.05, atol=0.01)


def test_uncertainty_is_drawn_from_the_posterior_of_such_networks_too(taught: Teach) -> None:
    found = taught("bert", "frozen").learner.predict(batch("bert", 9), task="first", posterior_samples=4)
    assert found.mutual_information is not None
    assert found.mutual_information.shape == (ROWS,)


def test_a_first_task_can_be_forgotten_and_the_folder_read_again(taught: Teach, build: Build, tmp_path: Path) -> None:
    learner, x = taught("bert", "frozen").learner.fork(), batch("bert", 9)
    learner.forget("first")
    learner.save(tmp_path / "model")
    again = Learner.load(tmp_path / "model", net=build("bert"), device="cpu")
    assert torch.equal(again.predict(x).probabilities, learner.predict(x).probabilities)


def test_a_network_that_tells_no_classes_apart_is_refused(build: Build) -> None:
    encoder = build("bert").bert
    learner = Learner(encoder, SETTINGS, device="cpu")
    with pytest.raises(InputError, match="BertModel returned no logits but a BaseModelOutput"):
        learner.learn(batch("bert"), labels(0))


def test_gpt2_without_a_token_to_fill_up_with_is_refused_before_training(build: Build) -> None:
    learner = Learner(build("gpt2", pad_token_id=None), SETTINGS, device="cpu")
    with pytest.raises(InputError, match=r"no padding token .*\. Set net\.config\.pad_token_id to the"):
        learner.learn(batch("gpt2"), labels(0))


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("name", NETWORKS)
def test_rows_of_several_tasks_in_one_batch_are_answered_as_each_task_alone_would(
    name: str, base: str, taught: Teach
) -> None:
    found = taught(name, base)
    names = list(found.logits)
    tasks = [names[row % len(names)] for row in range(ROWS)]
    given = found.learner.predict(batch(name, 9), task=tasks)
    for row, task in enumerate(tasks):
        expected = found.logits[task][row].double().softmax(0)
        here = [column for column, (owner, _) in enumerate(given.classes) if owner == names.index(task)]
        torch.testing.assert_close(given.probabilities[row, here], expected, rtol=1e-5, atol=1e-5)
    if base == "frozen":
        model = found.learner.model
        assert model.packing is not None
        places = torch.tensor([names.index(task) for task in tasks])
        assert model.mixed_logits(model.packing.pack(batch(name, 9)), places) is not None, "one pass"
