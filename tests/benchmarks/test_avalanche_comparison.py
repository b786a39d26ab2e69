"""The comparison with Avalanche, as far as it goes without: settings mean the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from benchmarks.avalanche.settings import ENTRIES, Training, avalanche_arguments

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "avalanche"

TRAINING = Training()


def test_lwf_weighs_the_distillation_alike():
    old, new = torch.randn(2, 64, 2, generator=torch.Generator().manual_seed(0)).unbind()
    ours, theirs = ENTRIES["lwf"].settings, avalanche_arguments("lwf", TRAINING)
    # Ours and theirs as each library's documentation says: λ T² KL, and alpha KL.
    kl = F.kl_div((new / 2).log_softmax(1), (old / 2).softmax(1), reduction="batchmean")
    assert theirs["temperature"] == ours["temperature"] == 2
    assert float(theirs["alpha"] * kl) == pytest.approx(float(ours["coefficient"] * 2**2 * kl))


def test_si_s_half_is_made_up_for():
    theirs = avalanche_arguments("si", TRAINING)
    assert theirs["si_lambda"] / 2 == ENTRIES["si"].settings["coefficient"]
    assert theirs == avalanche_arguments("si-as-shipped", TRAINING)


def test_ewc_on_averaged_gradients_is_as_strong_as_on_each_example_s():
    gradients = torch.randn(4000, TRAINING.batch_size, generator=torch.Generator().manual_seed(0))
    single, averaged = gradients.square().mean(), gradients.mean(1).square().mean()
    ours, theirs = ENTRIES["ewc"].settings["coefficient"], avalanche_arguments("ewc", TRAINING)["ewc_lambda"]
    assert float(theirs * averaged) == pytest.approx(float(ours * single), rel=0.1)


def test_gem_goes_through_as_many_stored_examples_in_both():
    per_task = avalanche_arguments("gem", TRAINING)["patterns_per_experience"]
    later = range(1, TRAINING.tasks)
    assert sum(per_task * earlier for earlier in later) == sum(ENTRIES["gem"].settings["memory_size"] for _ in later)


def test_a_missing_interpreter_is_one_sentence_and_exit_code_2(tmp_path: Path):
    command = [
        sys.executable,
        str(FOLDER / "compare.py"),
        "--avalanche-python",
        "no-such-python",
        "--out",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: --avalanche-python is 'no-such-python'")
    assert len(done.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())
