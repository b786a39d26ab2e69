"""What a network of transformers may be given: dicts, iterables of dicts, items with one label; what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hugging_face_networks import LENGTH, ROWS, SETTINGS, Taught, batch, labels
from ibpwf import Learner, factorize
from ibpwf.errors import InputError

Build = Callable[..., nn.Module]
Teach = Callable[[str, str], Taught]
FROZEN = SETTINGS.replace(base="frozen")


class Items:
    """As `datasets.Dataset`: examples by number, dicts of lists, texts as long as they are."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, place: int) -> dict[str, Any]:
        words = [2 + (place * 7 + k) % 50 for k in range(3 + place % 4)]
        return {"input_ids": words, "label": place % 2}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[place] for place in range(len(self)))


def parts(x: dict[str, Tensor], y: Tensor, size: int) -> list[tuple[dict[str, Tensor], Tensor]]:
    return [
        ({name: value[start : start + size] for name, value in x.items()}, y[start : start + size])
        for start in range(0, len(y), size)
    ]


@pytest.mark.parametrize("key", ["labels", "label"])
def test_batches_with_labels_among_them_teach_what_pairs_do(key: str, build: Build) -> None:
    pairs = parts(batch("bert"), labels(0), 8)
    taught = []
    for given in (pairs, [{**x, key: y} for x, y in pairs]):
        learner = Learner(build("bert"), FROZEN, seed=1, device="cpu")
        learner.learn(given, task="mails")
        taught.append(learner.logits(batch("bert", 9), "mails"))
    assert torch.equal(*taught)


def test_a_dict_may_bring_its_labels(build: Build) -> None:
    first, second = (Learner(build("bert"), FROZEN, seed=1, device="cpu") for _ in range(2))
    first.learn(batch("bert") | {"labels": labels(0)}, task="one")
    second.learn(batch("bert"), labels(0), task="one")
    assert torch.equal(first.logits(batch("bert", 9), "one"), second.logits(batch("bert", 9), "one"))


def test_items_with_one_label_each_are_put_together_at_the_length_of_the_longest(build: Build) -> None:
    learner = Learner(build("bert"), FROZEN, seed=1, device="cpu")
    task = learner.learn(Items(), task="texts")
    assert (task.examples, task.classes) == (ROWS, (0, 1))
    packing = learner.model.packing
    assert packing is not None
    assert packing.length == max(len(item["input_ids"]) for item in Items())
    listed = Learner(build("bert"), FROZEN, seed=1, device="cpu")
    listed.learn(list(Items()), task="texts")
    x = {"input_ids": torch.tensor([Items()[0]["input_ids"]])}
    assert torch.equal(learner.logits(x, "texts"), listed.logits(x, "texts"))
    with torch.no_grad():
        expected = learner.merge("texts")(**x).logits
    torch.testing.assert_close(learner.logits(x, "texts"), expected, rtol=1e-5, atol=1e-5)


class TorchItems(torch.utils.data.Dataset[dict[str, Any]]):
    """The same as torch has it, with rows held out of it."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, place: int) -> dict[str, Any]:
        return {name: torch.tensor(value) for name, value in Items()[place].items()}


def test_a_dataset_of_dicts_teaches_what_items_do(build: Build) -> None:
    logits = []
    for source in (Items(), TorchItems()):
        learner = Learner(build("bert"), FROZEN.replace(validation_fraction=0.3), seed=1, device="cpu")
        learner.learn(source, task="texts")
        logits.append(learner.logits({"input_ids": [[5, 6, 7]]}, "texts"))
    assert torch.equal(*logits)


def test_batches_of_several_lengths_are_read_at_the_longest(build: Build) -> None:
    learner = Learner(build("bert"), FROZEN, device="cpu")
    batches = [(batch("bert", seed, length=length), labels(seed)) for seed, length in ((0, 4), (1, 9), (2, 6))]
    learner.learn(batches, task="texts")
    assert learner.input_shape == (2 * 9,)
    learner.learn(batch("bert", 3, length=5), labels(3), task="shorter")


def test_the_length_may_be_said_beforehand(build: Build) -> None:
    given = Learner(build("bert"), FROZEN.replace(length=12), device="cpu")
    given.learn(batch("bert"), labels(0), task="one")
    assert given.input_shape == (24,)
    assert given.logits(batch("bert", 1, length=12), "one").shape == (ROWS, 2)
    model = factorize(build("bert"), base="frozen", length=10)
    assert Learner(model, device="cpu").settings.length == 10


def test_a_plain_tensor_stands_for_the_main_input(build: Build) -> None:
    images, words = (Learner(build(name), FROZEN, device="cpu") for name in ("vit", "bert"))
    pixels = batch("vit")["pixel_values"]
    images.learn(pixels, labels(0), task="one")
    assert images.input_shape == (3, 8, 8), "an image stays an image"
    assert torch.equal(images.logits(pixels, "one"), images.logits(batch("vit"), "one"))
    ids = batch("bert")["input_ids"]
    words.learn(ids, labels(0), task="one")
    assert torch.equal(words.logits(ids.tolist(), "one"), words.logits({"input_ids": ids}, "one"))


def test_a_first_task_that_fails_leaves_the_learner_free_to_take_other_inputs(build: Build) -> None:
    learner = Learner(build("bert"), FROZEN, device="cpu")
    with pytest.raises(InputError, match="y has shape"):
        learner.learn(batch("bert"), labels(0).unsqueeze(1))
    typed = batch("bert", length=5) | {"token_type_ids": torch.zeros(ROWS, 5, dtype=torch.long)}
    learner.learn(typed, labels(0), task="one")
    assert learner.input_shape == (15,)


def without(name: str) -> dict[str, Tensor]:
    return {key: value for key, value in batch("bert").items() if key != name}


BAD_LATER: list[tuple[Any, str]] = [
    (without("input_ids"), "x has no 'input_ids', which the network needs; it has 'attention_mask'"),
    (batch("bert") | {"pixels": torch.ones(ROWS, 2)}, "x has 'pixels', which is none of this model's inputs"),
    (batch("bert") | {"attention_mask": torch.ones(3, LENGTH)}, r"x\['input_ids'\] has 16 rows and .* has 3"),
    (batch("bert") | {"attention_mask": "seen"}, r"x\['attention_mask'\] holds text"),
    (batch("bert") | {"attention_mask": torch.ones(ROWS, 3).long()}, r"shape \(3,\); this model takes \(7,\)"),
    (batch("bert", length=9), r"has 9 tokens an example, and this model reads 7; cut texts to 7 .*length=9"),
    ({"input_ids": [[1, 2], [3]]}, r"x\['input_ids'\] has rows of different lengths"),
    ({"input_ids": torch.rand(4, LENGTH)}, r"x\['input_ids'\] holds torch.float32; give int64"),
    ({"input_ids": torch.full((1, LENGTH), (1 << 24) + 1)}, "holds 16777217; whole numbers are exact up to 16777216"),
    (
        {"input_ids": torch.full((1, LENGTH), 5000)},
        r"x\['input_ids'\] holds 5000, and the network knows tokens from 0 to \d+; use the tokenizer",
    ),
    ({"input_ids": torch.full((1, LENGTH), -1)}, r"holds -1, and the network knows tokens from 0"),
    ({"input_ids": torch.tensor([1, 2])}, r"has shape \(2,\); give one row of tokens per example"),
]


@pytest.mark.parametrize(("x", "problem"), BAD_LATER, ids=[problem[:40] for _, problem in BAD_LATER])
def test_inputs_unlike_those_of_the_first_task_are_refused_in_one_sentence(
    x: Any, problem: str, taught: Teach
) -> None:
    with pytest.raises(InputError, match=problem):
        taught("bert", "frozen").learner.predict(x)


BAD_FIRST: list[tuple[Any, str]] = [
    ({"attention_mask": torch.ones(4, 3)}, "x has no 'input_ids', which the network needs"),
    ({"input_ids": torch.ones(4, 3).long(), "text": torch.ones(4)}, "x has 'text', which is none of this model's"),
    ([{"input_ids": torch.ones(4, 3).long()}], "batch 0 of the list needs 'labels' .* and has 'input_ids'"),
    ([{"input_ids": [4, 5], "label": 1, "text": "why"}], r"x\['text'\] holds text; .* leave that field out"),
    ([{"input_ids": [4, 5], "label": 1}, {"input_ids": [4, 5]}], "item 1 of the Dataset needs 'labels'"),
    ({}, r"x has no 'input_ids'"),
    ({"input_ids": torch.full((4, 3), torch.nan)}, r"x\['input_ids'\] holds nan; give whole numbers"),
    ({"input_ids": torch.full((4, 3), -torch.inf)}, r"x\['input_ids'\] holds -inf; give whole numbers"),
]


@pytest.mark.parametrize(("x", "problem"), BAD_FIRST, ids=[problem[:40] for _, problem in BAD_FIRST])
def test_a_first_task_without_what_the_network_needs_is_refused(x: Any, problem: str, build: Build) -> None:
    y = None if isinstance(x, list) else [0, 1, 0, 1]
    with pytest.raises(InputError, match=problem):
        Learner(build("bert"), FROZEN, device="cpu").learn(x, y)


def test_texts_of_different_lengths_in_one_dict_are_refused_with_the_remedy(build: Build) -> None:
    ragged = {"input_ids": [[5, 6, 7], [8, 9]] * 4}
    with pytest.raises(InputError, match=r"input_ids.* has rows of different lengths; .* with padding=True"):
        Learner(build("bert"), FROZEN, device="cpu").learn(ragged, labels(0)[:8])


def test_single_examples_without_a_length_are_refused_with_the_remedy(build: Build) -> None:
    with pytest.raises(InputError, match=r"batch 0 of the generator is a single example .*; give batches"):
        Learner(build("bert"), FROZEN, device="cpu").learn(iter(Items()))


def test_the_model_itself_takes_named_inputs_once_a_task_has(build: Build) -> None:
    model = factorize(build("bert"), **FROZEN.factorization)
    with pytest.raises(InputError, match="no task has been learned from inputs with names"):
        model(batch("bert"), task=0)
    learner = Learner(model, FROZEN, device="cpu")
    learner.learn(batch("bert"), labels(0), task="mails")
    x = batch("bert", 9)
    assert torch.equal(learner.model(x, task=0), learner.logits(x, "mails"))
