"""docs/equations.md is true: every equation of the paper has a function that names it and a test that there is."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special

from ibpwf import Learner, Settings, factorize
from ibpwf.dispatch import stand_ins
from ibpwf.method import IBPWF
from ibpwf.models import mlp
from ibpwf.training.method import TaskData

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "equations.md").read_text()
LABELS = {
    *("W_fac", "W_fac_sum", "prior_pi", "prior_b", "post_q", "post_b", "ELBO", "online_inference"),
    *("gen_task_inference", "phi_task_inference", "parameter_est", "task_inf"),
    *("kl1", "kl2", "taylor_expansion", "moment", "kl_kumar", "entropy_incr_class"),
    *("post", "app_post_b", "app_ELBO", "app_online_inference", "apx_eq:phi_task_inference"),
}
"""Every label of an equation in the paper's source."""

REPEATED = {
    "post": "post_q",
    "app_post_b": "post_b",
    "app_ELBO": "ELBO",
    "app_online_inference": "online_inference",
    "apx_eq:phi_task_inference": "phi_task_inference",
}
"""Labels under which an appendix repeats an equation."""

ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("|") and not line.startswith(("| equation", "|---"))
]


def found(dotted: str) -> object:
    """What a dotted name stands for, a module's or a class's."""
    module = dotted.rpartition(".")[0]
    try:
        parent: object = importlib.import_module(module)
    except ModuleNotFoundError:
        parent = found(module)
    return getattr(parent, dotted.rpartition(".")[2])


@cache
def names_of_tests(file: str) -> set[str]:
    """The names of a file's tests, read without running it."""
    tree = ast.parse((ROOT / file).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_every_labeled_equation_of_the_paper_has_its_row() -> None:
    labels = {label for row in ROWS for label in re.findall(r"`([^`]+)`", row[0])}
    assert labels == LABELS


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]} {row[2].rpartition('.')[2]}".replace("`", ""))
def test_the_function_of_an_equation_names_it_and_its_test_is_there(row: list[str]) -> None:
    names, _, function, _, stand_in, test = row
    text = getattr(found(function.strip("`")), "__doc__", None) or ""
    for name in re.findall(r"[`*]([^`*]+)[`*]", names):
        wanted = REPEATED.get(name, name)
        assert re.search(rf"(?<![\w]){re.escape(wanted)}(?![\w])", text), f"{function} does not name {wanted}"
    if stand_in:
        assert callable(found(stand_in.strip("`")))
    file, _, name = test.strip("`").partition("::")
    assert name in names_of_tests(file), f"{file} has no {name}"


def test_every_stand_in_on_the_page_is_one_that_is_registered() -> None:
    references = ("factors.elbo.posterior_kl", "factors.elbo.sample_scores", "factors.layers.layer_weight")
    references += ("factors.layers.layer_product", "inference.base.infer_tasks")
    known = {one for name in references for one in stand_ins(found(f"ibpwf.{name}"))}  # type: ignore[arg-type]
    for row in ROWS:
        assert not row[4] or found(row[4].strip("`")) in known, row[4]


def code_of(dotted: str) -> CodeType:
    """What Python runs when a function is called, or a class."""
    thing: Any = found(dotted)
    thing = getattr(thing, "__wrapped__", thing)  # without the choice of a fast path
    code: CodeType = (thing.__new__ if isinstance(thing, type) else thing).__code__
    return code


def called(**changes: Any) -> set[CodeType]:
    """The code of all functions that training two tasks and predicting run."""
    torch.manual_seed(0)
    settings = Settings(alpha=6.0, epochs=2, finetune_epochs=1, batch_size=16, **changes)
    learner = Learner(mlp(6, [12], 4), settings, device="cpu")
    seen = set[CodeType]()
    sys.setprofile(lambda frame, event, _: seen.add(frame.f_code) if event == "call" else None)
    try:
        for task in range(2):
            y = torch.arange(64) % 2
            learner.learn(torch.randn(64, 6) + 3 * task + y.unsqueeze(1), y, task=f"t{task}")
        learner.predict(torch.randn(20, 6))
        learner.predict(torch.randn(20, 6), marginal=True, posterior_samples=3)
    finally:
        sys.setprofile(None)
    return seen


@pytest.mark.filterwarnings("ignore:task")
def test_the_functions_that_run_are_those_that_the_page_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IBPWF_ACCELERATE", raising=False)
    by_default, plain = called(), called(accelerate=False)
    cut = called(accelerate=False, kl_terms=10)
    for _, _, function, runs, fast, _ in ROWS:
        name = function.strip("`")
        assert runs in ("itself", "fast path", "both", "–"), name
        assert (code_of(name) in by_default) == (runs in ("itself", "both")), name
        assert (code_of(name) in plain) == (runs != "–"), name
        if fast and runs != "–":
            assert (code_of(fast.strip("`")) in by_default) == (runs in ("fast path", "both")), fast
            assert code_of(fast.strip("`")) not in plain, fast
    for name in ("cut_log_series", "log_moment"):
        assert code_of(f"ibpwf.factors.distributions.{name}") in cut


@pytest.mark.parametrize(
    "label", ["W_fac", "prior_pi", "ELBO", "online_inference", "kl_kumar", "parameter_est", "task_inf"]
)
def test_two_hops_lead_from_the_readme_to_the_line_of_a_central_equation(label: str) -> None:
    assert "](docs/equations.md)" in (ROOT / "README.md").read_text()
    assert any(f"`{label}`" in row[0] for row in ROWS)


def test_the_loss_of_a_mini_batch_is_minus_the_lower_bound_per_example() -> None:
    """Averaged over mini-batches that make up the task, and with the KL counted once: eq. (ELBO) in NumPy."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(48, 5, generator=generator), torch.arange(48) % 3
    method = IBPWF(factorize(mlp(5, [7], 3), alpha=4), Settings())
    data = TaskData("task", 0, (0, 1, 2), x, y)
    elbo, *_ = method.begin_task(data)
    method.parameters(elbo)
    network = method.network
    assert network is not None
    assert network.noise is not None
    start = network.noise.get_state()
    losses, log_likelihood = [], 0.0
    for rows in torch.arange(48).split(12):
        network.noise.set_state(start)  # the same draw of b and v for every mini-batch
        losses.append(method.loss(x[rows], y[rows]).total.item())
        network.noise.set_state(start)
        kl = network.kl().item()
        logits = network(x[rows]).detach().double().numpy()
        log_likelihood += float(special.log_softmax(logits, axis=1)[np.arange(12), y[rows].numpy()].sum())
    assert kl > 0
    assert np.mean(losses) == pytest.approx(-(log_likelihood - kl) / 48, rel=1e-5)
