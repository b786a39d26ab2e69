"""Tasks of networks of transformers as adapters of peft, and back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import ibpwf
from hugging_face_networks import NETWORKS, SETTINGS, Taught, batch, labels
from ibpwf import Learner
from peft_networks import in_peft

# A class of warnings that another process of the tests would have to import.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.mark.parametrize("name", NETWORKS)
def test_peft_and_a_learner_that_takes_the_adapter_give_the_same_logits(
    name: str, taught: Callable[[str, str], Taught], build: Callable[..., nn.Module], tmp_path: Path
) -> None:
    found, x = taught(name, "frozen"), batch(name, 9)
    task, expected = next(iter(found.logits.items()))
    ibpwf.export(found.learner, task, "peft", tmp_path / "adapter")
    with torch.no_grad():
        given = in_peft(build(name), tmp_path / "adapter")(**x).logits[:, : expected.shape[1]]
    torch.testing.assert_close(given, expected, rtol=1e-5, atol=1e-5)
    other = Learner(build(name), SETTINGS.replace(base="frozen"), device="cpu")
    other.learn_adapter(tmp_path / "adapter", batch(name, 1), labels(1), classes=[0, 1])
    torch.testing.assert_close(other.logits(x, 0), expected, rtol=1e-5, atol=1e-5)
    other.save(tmp_path / "model")
    again = Learner.load(tmp_path / "model", net=build(name), device="cpu")
    assert torch.equal(again.logits(x, 0), other.logits(x, 0))
