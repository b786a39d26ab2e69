"""The network of a run: the preset's, or one named on the command line."""

from __future__ import annotations

import pytest
import torch

from ibpwf.errors import InputError
from ibpwf.lab.data.tasks import Scenario, Task
from ibpwf.lab.experiments.network import build_network, network_text, parse_network
from ibpwf.lab.experiments.run_config import RunConfig
from ibpwf.storage.network_json import build, describe


def test_a_network_is_named_with_its_arguments() -> None:
    assert parse_network("vit_tiny") == {"builder": "vit_tiny"}
    assert parse_network("resnet; depth=32; width=8") == {"builder": "resnet", "depth": 32, "width": 8}
    assert parse_network("mlp;hidden=[50,20]") == {"builder": "mlp", "hidden": [50, 20]}


@pytest.mark.parametrize("text", ["vit_tiny", "resnet;depth=32;width=8", "mlp;hidden=[50, 20]"])
def test_a_network_can_be_written_as_it_was_named(text: str) -> None:
    assert network_text(parse_network(text)) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("vit", "unknown network 'vit'"),
        ("resnet20;classes=3", "argument of resnet20"),
        ("mlp;hidden", "not a setting"),
    ],
)
def test_a_wrong_name_or_argument_is_refused(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_network(text)


def test_the_data_decides_inputs_and_outputs_and_the_seed_the_values(digits: Scenario) -> None:
    nets = [build_network(parse_network("mlp;hidden=[7]"), digits, seed) for seed in (0, 0, 1)]
    assert nets[0](torch.zeros(2, 64)).shape == (2, 10)
    weights = [net.get_parameter("hidden1.weight") for net in nets]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_a_network_of_images_takes_square_ones_that_come_as_rows(digits: Scenario) -> None:
    net = build_network(parse_network("vit_tiny;patch=2;width=12;depth=1;heads=2"), digits, 0)
    assert net(torch.zeros(2, 64)).shape == (2, 10)
    assert build(describe(net))(torch.zeros(2, 64)).shape == (2, 10)  # as a model folder keeps it


def test_a_network_of_images_refuses_rows_that_are_no_square() -> None:
    x, y = torch.rand(20, 12), torch.arange(20) % 2
    rows = Scenario("rows", [Task("only", (x, y), (x, y))])
    with pytest.raises(InputError, match=r"takes images.*\(12,\)"):
        build_network(parse_network("vit_tiny"), rows, 0)


def test_a_run_keeps_the_network_it_was_given() -> None:
    config = RunConfig("split-digits", network=parse_network("mlp;hidden=[50,50]"))
    assert config.to_json()["network"] == {"builder": "mlp", "hidden": [50, 50]}
    assert RunConfig("split-digits").to_json()["network"]["hidden"] == [100]
    with pytest.raises(InputError, match="builds its own"):
        RunConfig("split-digits", method="ewc", network=parse_network("mlp"))
