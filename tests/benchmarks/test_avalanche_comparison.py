"""The comparison with Avalanche, as far as it goes without: settings mean the same, and the page adds up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "avalanche"
sys.path.insert(0, str(FOLDER))

import page  # noqa: E402
from settings import ENTRIES, Training, avalanche_arguments  # noqa: E402

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


def run(who: str, seed: int, accuracy: float, speed: float, way: str = "") -> dict[str, Any]:
    return {
        "who": who,
        "method": "adam",
        "seed": seed,
        "way": way,
        "accuracy": [accuracy, accuracy + 2],
        "samples_per_second": speed,
    }


def content(theirs: float) -> dict[str, Any]:
    runs = []
    for seed, wobble in enumerate((-1.0, 0.0, 1.0)):
        runs += [
            run("ours", seed, 90 + wobble, 9000 + seed),
            run("bare", seed, 90, 10000),
            run("avalanche", seed, theirs + wobble, 6000, "leanest"),
            run("avalanche", seed, theirs, 3000, "documented"),
        ]
    entry = {"ours": "adam", "theirs": "Naive", "settings": {}, "mapping": "m", "difference": "d", "variant_of": None}
    return {
        "command": "python compare.py",
        "commit": "abc1234",
        "machine": {"processor": "A processor", "cores": 2},
        "threads": 1,
        "seeds": [0, 1, 2],
        "versions": {"ours": {"torch": "2.13"}},
        "training": TRAINING.to_json(),
        "entries": {"adam": entry},
        "runs": runs,
    }


def test_the_page_tells_accuracies_ratios_and_conditions():
    text = page.markdown(content(theirs=90.5))
    assert "| adam / Naive | 91.00 ± 1.00 | 91.50 ± 1.00 | -0.50 |" in text
    assert "| adam | 9,001 (9,000–9,002) | 3,000 (3,000–3,000) | 3.00 (3.00–3.00) ✅ | 6,000" in text
    assert "| 1.50 (1.50–1.50) ❌ |" in text
    assert "ours / bare: **0.90 (0.90–0.90) ✅**" in text
    for condition in ("`python compare.py`", "abc1234", "A processor, 2 cores", "torch 2.13", "seeds 0, 1, 2"):
        assert condition in text


@pytest.mark.parametrize(("theirs", "mark"), [(90.5, "✅"), (80.0, "❌")])
def test_a_difference_that_is_no_noise_is_marked(theirs: float, mark: str):
    (row,) = [line for line in page.accuracy_table(content(theirs)) if line.startswith("| adam")]
    assert row.endswith(f"{mark} |")


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
