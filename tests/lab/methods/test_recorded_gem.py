"""Methods whose step is recorded in two halves, with a decision on the host between them."""

from __future__ import annotations

import pytest
import torch

from ibpwf.lab.data.tasks import Scenario
from ibpwf.lab.methods.dense import Problem
from ibpwf.lab.methods.gem import GEM, GEMSettings
from ibpwf.training.loop import Training
from ibpwf.training.method import TaskData


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("setting", ["task", "class"])
def test_a_recorded_step_does_what_a_plain_step_does(setting: str, digits: Scenario) -> None:
    settings = GEMSettings(hidden=(24,), epochs=2, batch_size=32, learning_rate=0.01, memory_size=60)
    after = []
    for capturable in (True, False):
        one = type("One", (GEM,), {"capturable": capturable, "tf32": False})
        method = one(Problem((64,), 10, setting), settings, seed=3, device="cuda")
        for task in digits[:3]:
            classes, y = torch.unique(task.train.y, return_inverse=True)
            data = TaskData(task.name, task.index, tuple(classes.tolist()), task.train.x.cuda(), y.cuda(), 3)
            for _ in Training(method, data).run():
                pass
        after.append(torch.cat([p.detach().flatten() for p in method.net.parameters()]))
    torch.testing.assert_close(*after, rtol=1e-3, atol=1e-4)
