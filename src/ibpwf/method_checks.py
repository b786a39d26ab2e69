"""Whether what was read of IBP-WF fits together: tasks, factors, features, task inference, and their inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ibpwf.storage.network_json import check_runs
from ibpwf.storage.tensor_checks import NotWhole
from ibpwf.views import check_square

if TYPE_CHECKING:
    from ibpwf.method import IBPWF


def check_opinions(method: IBPWF) -> None:
    """They are of the features that the router knows, and weighed where anything was."""
    for one in method.versions.all:
        weighed = one.calibration is not None and one.calibration.opinion is not None
        if one.opinion is None and not weighed:
            continue
        place, width = f"task-{one.serial:04d}", method.inference.phi_width()
        if one.opinion is None or (one.calibration is not None and not weighed):
            raise NotWhole(f"part '{place}' has an opinion, and its calibration none, or the other way round")
        if len(one.opinion.weight) != width:
            raise NotWhole(f"the opinion in part '{place}' is of {len(one.opinion.weight)} features, not {width}")


def check_inputs(method: IBPWF, shape: tuple[int, ...]) -> None:
    """Refuse inputs that the network and φ were not made for."""
    given, wanted = check_runs(method.model.net, shape), (1, method.model.head_width)
    if given != wanted:
        head = f"its head '{method.model.head}' has {wanted[1]} outputs"
        raise NotWhole(f"the network gives {list(given)} for one input, and {head}")
    for task in method.model.tasks:
        check_square(torch.zeros(1, *shape, dtype=torch.float32), task.turns, method.image_shape)
    known, width = method.inference.phi_width(), method.features.width_for(shape)
    if None not in (known, width) and known != width:
        raise NotWhole(f"task inference is of {known} features, and φ has {width}")


def check_read(method: IBPWF) -> None:
    """A factor that is read must be there: weights composed of the wrong ones would answer without a sign of it."""
    model = method.model
    for name, dictionary in model.layers.items():
        readers = [task.selected[name] for task in model.tasks]
        if model.reference is not None and name in model.reference.selected:
            readers.append(model.reference.selected[name])
        locked = [block.positions for block in dictionary.all_blocks]
        for selected in readers:
            if not bool(torch.isin(selected.nonzero().flatten(), torch.cat(locked)).all()):
                raise NotWhole(f"a task reads factors of layer '{name}' that are not there")
