"""The learner of IBP-WF, and model folders of any method read and held."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ibpwf.core.model import FactorModel, factorize
from ibpwf.core.weights import load_tensors
from ibpwf.errors import InputError, StoreError
from ibpwf.method import IBPWF
from ibpwf.settings import Settings
from ibpwf.storage.checkpoint_folder import discard_finished
from ibpwf.storage.folder import MANIFEST, SCHEMA, lock_folder, open_folder
from ibpwf.storage.model_folder import KIND
from ibpwf.storage.network_json import build, check_same, describe, signature
from ibpwf.task_learner import TaskInfo, TaskLearner, choose_device, whole_folder

__all__ = ["KIND", "SCHEMA", "Learner", "TaskInfo", "TaskLearner", "choose_device", "load", "open_model"]


class Learner(TaskLearner):
    """Learns task after task, forgets nothing, and infers the task of an input by itself.

    Given a plain network, it is factorised with the settings' `alpha`, `max_factors`, `heads`, `strength_std` and
    `init`; given the result of `factorize`, that keeps its own. The same seed on the same machine gives
    the same bits, whether or not the learner was stored and loaded between tasks.
    """

    def __init__(
        self,
        model: FactorModel | nn.Module,
        settings: Settings | None = None,
        *,
        seed: int = 0,
        device: str | torch.device = "auto",
    ) -> None:
        settings = settings or Settings()
        if isinstance(model, nn.Module):
            model = factorize(
                model,
                alpha=settings.alpha,
                max_factors=settings.max_factors,
                heads=settings.heads,
                strength_std=settings.strength_std,
                init=settings.init,
            )
        if not isinstance(model, FactorModel):
            raise InputError(
                f"model is a {type(model).__name__}; give a torch.nn.Module or the result of ibpwf.factorize."
            )
        if model.tasks:
            raise InputError("this factorised model already belongs to a learner; factorize the network again.")
        caps = {n: d.max_factors for n, d in model.layers.items() if d.max_factors is not None}
        self.settings = settings.replace(
            alpha={name: dictionary.alpha for name, dictionary in model.layers.items()},
            max_factors=caps or None,
            heads=model.heads,
            strength_std=model.strength_std,
            init=model.init,
        )
        self.model = model.to(choose_device(device))
        super().__init__(IBPWF(model, self.settings), seed=seed)

    def merge(self, task: int | str) -> nn.Module:
        """One task as an ordinary network of the original class, its outputs in the order of the task's classes.

        Its state dict loads into your own network, unless `heads` is "per-task" and the task has another number of
        classes (see `FactorModel.merge`).
        """
        if not self.tasks:
            raise InputError("nothing has been learnt yet; call learn(x, y) first.")
        return self.model.merge(self.task_number(task))

    def _configuration(self) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
        configuration = {
            "settings": self.settings.to_json(),
            "network": describe(self.model.net),
            "signature": signature(self.model.net),
            "head": self.model.head,
            "layers": list(self.model.layers),
            "frozen": sorted(self.model.frozen),
        }
        return configuration, {"template": dict(self.model.net.state_dict())}

    @classmethod
    def load(cls, path: str | Path, *, net: nn.Module | None = None, device: str | torch.device = "auto") -> Learner:
        """Read a model folder. A network of your own class must be given again as `net` (its weights do not
        matter); networks from `ibpwf.models` and `nn.Sequential` ones are rebuilt from the folder."""
        opened = open_folder(path, kind=KIND)
        with whole_folder(path):
            if opened.content["method"] != IBPWF.name:
                raise StoreError(f"{path} holds a '{opened.content['method']}' model; read it with ibpwf.load(path).")
            configuration = opened.content["configuration"]
            if net is None:
                if configuration["network"] is None:
                    raise StoreError(
                        f"{path} holds a network of your own class; pass it again: Learner.load(path, net=MyNet())."
                    )
                net = build(configuration["network"])
            check_same(net, configuration["signature"])
            load_tensors(net, opened.tensors("template"))
            settings = Settings.from_json(configuration["settings"])
            model = factorize(
                net,
                alpha=settings.alpha,
                max_factors=settings.max_factors,
                heads=settings.heads,
                head=configuration["head"],
                include=list(configuration["layers"]),
                strength_std=settings.strength_std,
                init=settings.init,
            )
            model.frozen = frozenset(configuration.get("frozen", ()))  # as it was, whatever the given network has
            return cls(model, settings, seed=opened.content["seed"], device=device)._restored(opened)


def load(path: str | Path, *, net: nn.Module | None = None, device: str | torch.device = "auto") -> TaskLearner:
    """Read the model folder of any method; `net` is for IBP-WF on a network of your own class."""
    if open_folder(path, kind=KIND).content.get("method") == IBPWF.name:
        return Learner.load(path, net=net, device=device)
    return TaskLearner.load(path, device=device)


@contextlib.contextmanager
def open_model(
    path: str | Path,
    *,
    new: Callable[[], TaskLearner] | None = None,
    net: nn.Module | None = None,
    device: str | torch.device = "auto",
) -> Iterator[TaskLearner]:
    """Hold a model folder while you learn into it: `with open_model("model") as learner: ...`.

    The learner is the folder's, or what `new` makes where there is none yet. Until the block ends, anyone else who
    wants to write to the folder, in this process or another, gets an error at once. Save inside the block.
    """
    if new is None:
        open_folder(path, kind=KIND)  # a path that holds no model is not made a folder
    with lock_folder(path):
        if new is not None and not os.path.lexists(Path(path) / MANIFEST):
            yield new()
        else:
            learner = load(path, net=net, device=device)
            discard_finished(path, learner.method.serial(len(learner.tasks)))
            yield learner
