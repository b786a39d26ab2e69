"""φ of every task's test images on a plane: t-SNE, and how well the tasks keep apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ibpwf.lab.experiments.reproduction.experiment import Claim, Conditions, FinishedRun
from ibpwf.learner import Learner
from ibpwf.method import IBPWF

ROWS = {"quick": 30, "full": 200}
NEIGHBORS = 10


def neighbors_alike(points: np.ndarray[Any, Any], tasks: np.ndarray[Any, Any], count: int = NEIGHBORS) -> float:
    """Of each point's nearest points, how many (in percent) belong to its own task."""
    from sklearn.neighbors import NearestNeighbors

    nearest = NearestNeighbors(n_neighbors=count).fit(points).kneighbors(return_distance=False)  # itself left out
    return float(100.0 * (tasks[nearest] == tasks[:, None]).mean())


def embedding(runs: Sequence[FinishedRun], conditions: Conditions) -> dict[str, Any]:
    """The map of the first seed's features, and the share of neighbours of the same task."""
    from sklearn.manifold import TSNE

    run = runs[0]
    seed = run.result["seeds"][0]
    learner = Learner.load(run.folder / f"seed-{seed}" / "model", device=conditions.device)
    method = learner.method
    assert isinstance(method, IBPWF)
    stream = run.stream(seed)
    rows = ROWS[conditions.budget]
    picks = [torch.randperm(len(t.test), generator=torch.Generator().manual_seed(seed))[:rows] for t in stream]
    x = torch.cat([task.test.x[pick] for task, pick in zip(stream, picks, strict=True)])
    tasks = np.repeat(np.arange(len(stream)), [len(pick) for pick in picks])
    phi = method.features(x.to(learner.device)).double().cpu().numpy()
    made = TSNE(2, perplexity=min(30.0, (len(phi) - 1) / 3), init="pca", random_state=seed).fit_transform(phi)
    return {
        "benchmark": run.spec.benchmark,
        "ran": run.spec.scenario,
        "seed": seed,
        "tasks": [task.name for task in stream],
        "points": [[round(float(a), 3), round(float(b), 3), int(t)] for (a, b), t in zip(made, tasks, strict=True)],
        "alike": neighbors_alike(made, tasks, min(NEIGHBORS, rows - 1)),
        "alike_in_features": neighbors_alike(phi, tasks, min(NEIGHBORS, rows - 1)),
        "command": run.result["command"],
    }


def tasks_cluster(measured: dict[str, Any]) -> Claim:
    alike, tasks = measured["alike"], len(measured["tasks"])
    statement = (
        f"Features cluster by task: {alike:.1f} % of the {NEIGHBORS} nearest neighbours on the map are of the same "
        f"task (guessing: {100 / tasks:.0f} %)."
    )
    numbers = {"on the map": alike, "in the features": measured["alike_in_features"], "guessing": 100 / tasks}
    return Claim(statement, numbers, alike >= 80)
