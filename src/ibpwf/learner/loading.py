"""Model folders as what was saved: a learner of any method, or a classifier."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ibpwf.learner.learner import Learner
from ibpwf.storage.checkpoint_folder import discard_finished
from ibpwf.storage.folder import MANIFEST, lock_folder, open_folder
from ibpwf.storage.model_folder import KIND, face_of

if TYPE_CHECKING:
    from ibpwf.estimator import ContinualClassifier


def load(
    path: str | Path, *, net: nn.Module | None = None, device: str | torch.device = "auto", **parts: Any
) -> Learner[Any] | ContinualClassifier:
    """Read a model folder as what was saved: a `Learner` of any method, or a `ContinualClassifier`.

    Parameters
    ----------
    path
        The model folder.
    net, parts
        A network or parts of your own, as in `Learner.load`.
    device
        "auto" takes the GPU where there is one.
    """
    opened = open_folder(path, kind=KIND)
    if face_of(opened.content) is not None:
        from ibpwf.estimator import ContinualClassifier

        return ContinualClassifier.load(path, device=str(device))
    return Learner.restored(opened, net, device, **parts)


@contextlib.contextmanager
def open_model(
    path: str | Path,
    *,
    new: Callable[[], Any] | None = None,
    net: nn.Module | None = None,
    device: str | torch.device = "auto",
    **parts: Any,
) -> Iterator[Any]:
    """Hold a model folder while you learn into it: `with open_model("model") as learner: ...`.

    It gives what `load` gives, or what `new` makes if there is no model yet. Until the block ends, every other
    writer, in this process or another, gets an error at once. Save inside the block.
    """
    if new is None:
        open_folder(path, kind=KIND)  # a path that holds no model is not made a folder
    with lock_folder(path):
        if new is not None and not os.path.lexists(Path(path) / MANIFEST):
            yield new()
        else:
            found = load(path, net=net, device=device, **parts)
            learner = found if isinstance(found, Learner) else found.learner_
            discard_finished(path, learner.method.next_serial(len(learner.tasks)))
            yield found
