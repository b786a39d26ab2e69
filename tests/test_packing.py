"""Named inputs in one row of numbers and back, and networks of the user's own that take them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ibpwf import Learner, Settings, factorize
from ibpwf.errors import InputError, StoreError
from ibpwf.packing import find_packing, pack_inputs, packing_of, unpack_inputs
from ibpwf.storage.folder import open_folder, save_folder
from ibpwf.storage.model_folder import KIND

SETTINGS = Settings(epochs=1, finetune_epochs=1, batch_size=8, alpha=3.0)
ROWS = 16


class Fused(nn.Module):
    """Two inputs with names, one of them optional."""

    def __init__(self) -> None:
        super().__init__()
        self.values, self.codes, self.last = nn.Linear(4, 6), nn.Embedding(9, 6), nn.Linear(6, 3)

    def forward(self, values: Tensor, codes: Tensor | None = None, flip: Tensor | None = None) -> Tensor:
        h = self.values(values.flatten(1))
        h = h if codes is None else h + self.codes(codes).mean(1)
        h = h if flip is None else torch.where(flip.unsqueeze(1), -h, h)
        out: Tensor = self.last(h.relu())
        return out


def inputs(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "values": torch.randn(ROWS, 2, 2, generator=generator),
        "codes": torch.randint(0, 9, (ROWS, 3), generator=generator),
        "flip": torch.rand(ROWS, generator=generator) < 0.5,
    }


def test_what_is_packed_comes_back_as_it_was() -> None:
    packing = find_packing(Fused(), inputs())
    rows = packing.pack(inputs())
    assert rows.shape == (ROWS, 4 + 3 + 1)
    assert rows.dtype == torch.float32
    for name, value in packing.unpack(rows).items():
        assert value.dtype == inputs()[name].dtype
        assert torch.equal(value, inputs()[name])


def test_whole_numbers_are_exact_up_to_the_largest_that_is_taken() -> None:
    codes = {"values": torch.zeros(2, 4), "codes": torch.tensor([[1 << 24, (1 << 24) - 1], [-(1 << 24), 3]])}
    packing = find_packing(Fused(), codes)
    assert torch.equal(packing.unpack(packing.pack(codes))["codes"], codes["codes"])


def test_a_network_keeps_its_names_and_repr_and_gets_its_class_back() -> None:
    net = Fused()
    names, shown, expected = [*net.state_dict()], repr(net), net(**inputs())
    packing = find_packing(net, inputs())
    pack_inputs(net, packing)
    assert ([*net.state_dict()], repr(net), packing_of(net)) == (names, shown, packing)
    assert isinstance(net, Fused)
    assert torch.equal(net(packing.pack(inputs())), expected)
    unpack_inputs(net)
    assert type(net) is Fused
    assert torch.equal(net(**inputs()), expected)


def test_a_network_of_ones_own_learns_from_named_inputs() -> None:
    learner = Learner(Fused(), SETTINGS, device="cpu")
    learner.learn(inputs(), torch.arange(ROWS) % 2, task="one")
    before = learner.logits(inputs(5), "one")
    learner.learn(inputs(1), torch.arange(ROWS) % 3, task="two")
    assert torch.equal(learner.logits(inputs(5), "one"), before)
    merged = learner.merge("one")
    assert type(merged) is Fused
    with torch.no_grad():
        torch.testing.assert_close(merged(**inputs(5)), before, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("way", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_of_a_learner_answers_and_learns_on(way: Callable[[Learner], Learner]) -> None:
    learner = Learner(Fused(), SETTINGS, device="cpu")
    learner.learn(inputs(), torch.arange(ROWS) % 2, task="one")
    other = way(learner)
    for each in (learner, other):
        each.learn(inputs(1), torch.arange(ROWS) % 3, task="two")
    for task in ("one", "two"):
        assert torch.equal(other.logits(inputs(5), task), learner.logits(inputs(5), task))


def test_a_fork_that_has_learned_nothing_may_take_other_inputs() -> None:
    first = Learner(Fused(), SETTINGS, device="cpu")
    second = first.fork()
    first.learn(inputs(), torch.arange(ROWS) % 2)
    second.learn({"values": inputs()["values"]}, torch.arange(ROWS) % 2)
    assert (first.input_shape, second.input_shape) == ((8,), (2, 2))


def stored(folder: Path) -> dict[str, Any]:
    learner = Learner(Fused(), SETTINGS, device="cpu")
    learner.learn(inputs(), torch.arange(ROWS) % 2, task="one")
    learner.save(folder)
    found: dict[str, Any] = open_folder(folder, kind=KIND).content["configuration"]["packing"]
    return found


def test_a_folder_says_how_inputs_are_packed(tmp_path: Path) -> None:
    assert stored(tmp_path / "model") == {
        "fields": [
            {"name": "values", "shape": [2, 2], "kind": "float32"},
            {"name": "codes", "shape": [3], "kind": "int64"},
            {"name": "flip", "shape": [], "kind": "bool"},
        ],
        "padding": 0,
    }


def wrong_length(packing: dict[str, Any]) -> None:
    packing["fields"][1]["shape"] = [4]


def wrong_kind(packing: dict[str, Any]) -> None:
    packing["fields"][1]["kind"] = "int8"


def named_twice(packing: dict[str, Any]) -> None:
    packing["fields"][1]["name"] = "values"


@pytest.mark.parametrize("damage", [wrong_length, wrong_kind, named_twice])
def test_a_damaged_packing_is_refused(damage: Callable[[dict[str, Any]], None], tmp_path: Path) -> None:
    stored(tmp_path / "model")
    opened = open_folder(tmp_path / "model", kind=KIND)
    damage(opened.content["configuration"]["packing"])
    save_folder(tmp_path / "damaged", kind=KIND, content=opened.content, files=opened.all_tensors())
    with pytest.raises(StoreError, match=r"packing|fields"):
        Learner.load(tmp_path / "damaged", net=Fused())


@pytest.mark.parametrize(
    ("x", "problem"),
    [
        ({"codes": torch.ones(4, 3).long()}, "x has no 'values', which the network needs"),
        (
            {"values": torch.ones(4, 4), "words": torch.ones(4)},
            "x has 'words', which is none of this model's inputs",
        ),
        ({"values": torch.tensor(1.0)}, r"x\['values'\] is a single number"),
        ({"values": torch.ones(4, 4, dtype=torch.complex64)}, r"x\['values'\] holds torch.complex64"),
        ({"values": torch.full((4, 4), torch.nan)}, "x holds nan in row 0"),
    ],
)
def test_bad_inputs_are_refused_by_name(x: Any, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        Learner(Fused(), SETTINGS, device="cpu").learn(x, [0, 1, 0, 1])


def test_a_dict_for_a_network_that_takes_one_tensor_is_refused() -> None:
    learner = Learner(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), SETTINGS, device="cpu")
    with pytest.raises(InputError, match=r"x has no 'input', which the network needs; it has 'input_ids'"):
        learner.learn({"input_ids": torch.ones(4, 4)}, [0, 1, 0, 1])
    learner.learn(torch.randn(ROWS, 4), torch.arange(ROWS) % 2)
    with pytest.raises(InputError, match="x is a dict, but the network takes one tensor"):
        learner.predict({"input": torch.ones(4, 4)})


class Conv1D(nn.Module):
    """As transformers has it: a Linear layer whose weight is (inputs, outputs)."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight, self.bias = nn.Parameter(torch.randn(nx, nf) / nx**0.5), nn.Parameter(torch.zeros(nf))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight)


def transposed(hooked: bool) -> nn.Module:
    net = nn.Sequential(Conv1D(6, 4), nn.ReLU(), nn.Linear(6, 3))
    if hooked:
        net[0].register_forward_hook(lambda module, given, out: 2 * out)
    return net


@pytest.mark.parametrize("base", ["none", "frozen"])
@pytest.mark.parametrize("hooked", [False, True], ids=["called", "lent its weight"])
def test_a_weight_that_lies_the_other_way_round_is_learned_and_merged(hooked: bool, base: str) -> None:
    net = transposed(hooked)
    model = factorize(net, alpha=3.0, base=base)
    assert (model.layers["0"].inputs, model.layers["0"].outputs) == (4, 6)
    network = model.start_task(3, torch.Generator().manual_seed(0))
    x = torch.randn(ROWS, 4)
    if base == "frozen":
        torch.testing.assert_close(network(x), net(x))
    optimizer = torch.optim.SGD(network.trainable(posterior=True), lr=0.1)
    nn.functional.cross_entropy(network(x), torch.arange(ROWS) % 3).backward()
    optimizer.step()
    network.fix_selection()
    expected = network(x).detach()
    model.finish_task(network)
    merged = model.merge(0)
    assert merged[0].weight.shape == (4, 6)
    torch.testing.assert_close(model.logits(x, 0), expected)
    torch.testing.assert_close(merged(x), expected)
