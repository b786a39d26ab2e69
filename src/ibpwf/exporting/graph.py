"""What a model calculates, as one torch module without Python decisions: it can be traced into any graph format.

A graph takes the user's own numbers and gives probabilities: preprocessing, network, softmax; for a whole learner
also φ(x) and what it says of tasks (paper, eq. task_inf; with a router, `inference.fusion`).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ibpwf.backbones.backbone import PIXEL_LEVELS, ImageInput
from ibpwf.backbones.resizing import resizing, shrinks
from ibpwf.data.layout import Layout
from ibpwf.errors import InputError
from ibpwf.estimator.preparing import BackbonePreparation, PixelPreparation, Preparation, averaging, loaded
from ibpwf.inference import fusion
from ibpwf.method import IBPWF
from ibpwf.preprocessing import LINEAR_TO, Standardizer


class _Standardize(nn.Module):
    """`Standardizer` in torch: in float64 up to the last step, as there."""

    def __init__(self, standardizer: Standardizer) -> None:
        super().__init__()
        self.register_buffer("mean", torch.from_numpy(standardizer.mean))
        self.register_buffer("scale", torch.from_numpy(standardizer.scale))

    def forward(self, x: Tensor) -> Tensor:
        z = (x - self.get_buffer("mean")) / self.get_buffer("scale")
        beyond = 1 + torch.log(z.abs().clamp(min=LINEAR_TO) / LINEAR_TO)  # 1 up to ±5
        return (z.clamp(-LINEAR_TO, LINEAR_TO) * beyond).float()


class _Pixels(nn.Module):
    """Images as files hold them, N×height×width×channels, as the reader of files makes rows of them: colours first,
    bytes as 0 to 1, in float32."""

    def __init__(self, are_bytes: bool) -> None:
        super().__init__()
        self.are_bytes = are_bytes

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 3, 1, 2).float()
        return (x / 255 if self.are_bytes else x).flatten(1).double()


class _FillIn(nn.Module):
    """The first file's means for values that are missing."""

    def __init__(self, means: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("means", torch.tensor(means, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x.isnan(), self.get_buffer("means"), x)


class _Averaged(nn.Module):
    """Flat rows as images, averaged down as `PixelPreparation` does."""

    def __init__(self, preparation: PixelPreparation) -> None:
        super().__init__()
        self.image, self.smaller = preparation.image, preparation.size != preparation.image[1:]
        down, across = averaging(preparation.image, preparation.size)
        self.register_buffer("down", down)
        self.register_buffer("across", across.T.contiguous())

    def forward(self, x: Tensor) -> Tensor:
        images = x.reshape(-1, *self.image)
        return self.get_buffer("down") @ images @ self.get_buffer("across") if self.smaller else images


class _Seen(nn.Module):
    """Flat rows as a trained network's features. An image is resized by two products, which say the same as
    interpolation and are traced more widely."""

    def __init__(self, preparation: BackbonePreparation) -> None:
        super().__init__()
        self.image, self.levels = preparation.image, preparation.levels
        self.net = copy.deepcopy(loaded(preparation.name, preparation.digest)).cpu()
        sides, size, resize = preparation.image[1:], preparation.size, preparation.resize
        for name, side in zip(("down", "across"), sides, strict=True):
            self.register_buffer(name, resizing(side, size, resize, shrinks(sides, size)))
        takes = self.net.input
        assert isinstance(takes, ImageInput)
        self.register_buffer("mean", torch.tensor(takes.mean, dtype=torch.float32).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(takes.std, dtype=torch.float32).view(3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        pixels = x.float().reshape(-1, *self.image) * (PIXEL_LEVELS / self.levels)
        pixels = self.get_buffer("down") @ pixels @ self.get_buffer("across").T
        found: Tensor = self.net((pixels.expand(-1, 3, -1, -1) - self.get_buffer("mean")) / self.get_buffer("std"))
        return found.double()


def _modules_of(preparation: Preparation) -> list[nn.Module]:
    """What a preparation does, after the columns of files have become numbers."""
    if isinstance(preparation, Standardizer):
        return [_Standardize(preparation)]
    if isinstance(preparation, PixelPreparation):
        return [_Standardize(preparation.columns), _Averaged(preparation)]
    if isinstance(preparation, BackbonePreparation):
        return [_Seen(preparation), _Standardize(preparation.standardizer)]
    raise InputError(
        f"inputs are prepared by a {type(preparation).__name__}, which cannot be put into a graph; export a task's "
        "plain weights (safetensors)."
    )


def prepare(preparation: Preparation | None, layout: Layout | None = None) -> nn.Module:
    """The preprocessing that belongs in the graph: none for a learner, whose inputs are its user's affair."""
    if preparation is None:
        return nn.Identity()
    texts = [] if layout is None else [column for column in layout.columns if column.kind == "text"]
    if texts:
        raise InputError(
            f"column {texts[0].name!r} holds texts, which the encoder {texts[0].encoder} reads, and a graph takes "
            "numbers; answer with ibpwf predict, or export a task's plain weights (safetensors)."
        )
    dated = [] if layout is None else [column for column in layout.columns if column.kind == "date"]
    if dated:
        raise InputError(
            f"column {dated[0].name!r} holds dates, and a graph takes numbers; answer with ibpwf predict, export to "
            "mlflow, or export a task's plain weights (safetensors)."
        )
    steps = _modules_of(preparation)
    if layout is not None and layout.kind == "images":
        steps.insert(0, _Pixels(layout.pixels == "bytes"))
    if layout is not None and layout.missing == "mean":
        steps.insert(0, _FillIn(layout.means))
    return nn.Sequential(*steps)


class Expert(nn.Module):
    """A task's class scores: of one with label augmentation, the mean over all ways in which it looks at an image."""

    def __init__(self, scores: nn.Module, network: str) -> None:
        super().__init__()
        self.scores, self.network = scores, network  # the name of its class, for messages

    @classmethod
    def of(cls, method: IBPWF, task: int) -> Expert:
        """The weights are copies, and can be trained: otherwise attention takes a path that does not trace."""
        model, place = method.model, method.place(task)
        net = model.thawed(copy.deepcopy(model.ready(place)).cpu())
        return cls(method.views(task).export_module(net, model.tasks[place].classes), type(net).__name__)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.scores(x)
        return found


class TaskGraph(nn.Module):
    """One task: p(c|x,t), a column per class of the task."""

    outputs = ("probabilities",)

    def __init__(self, prepare: nn.Module, expert: Expert, temperature: float) -> None:
        super().__init__()
        self.prepare, self.expert, self.temperature = prepare, expert, temperature

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.expert(self.prepare(x))
        return (scores.double() / self.temperature).softmax(1).float()


class WholeGraph(nn.Module):
    """All tasks: P(c|x), a column per label, and P(t|x), a column per task. A label of several tasks has the sum."""

    outputs = ("probabilities", "task_probabilities")

    def __init__(self, prepare: nn.Module, joint: nn.Module, columns: Sequence[int], labels: int) -> None:
        """`joint` gives P(t,c|x), a column per class of each task, and P(t|x); `columns` has the place of each of
        these classes among the `labels`."""
        super().__init__()
        self.prepare, self.joint = prepare, joint
        self.register_buffer("spread", F.one_hot(torch.tensor(columns), labels).double())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        joint, tasks = self.joint(self.prepare(x))
        return (joint @ self.get_buffer("spread")).float(), tasks.float()


def joint_of(method: IBPWF) -> nn.Module:
    """P(t,c|x) and P(t|x) as the method's task inference has them."""
    return _Fusion(method) if method.inference.has_class_scores else _Mixture(method)


class _Mixture(nn.Module):
    """P(t,c|x) = P(t|φ(x)) p(c|x,t), where only tasks are inferred."""

    def __init__(self, method: IBPWF) -> None:
        super().__init__()
        tasks = range(len(method.classes))
        self.scores, self.phi = method.inference.export_module(), method.features.export_module()
        self.experts = nn.ModuleList(Expert.of(method, task) for task in tasks)
        self.temperatures = [method.temperature(task) for task in tasks]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        tasks = self.scores(self.phi(x)).log_softmax(1).exp()
        parts = []
        for task, expert in enumerate(self.experts):
            p = (expert(x).double() / self.temperatures[task]).softmax(1)
            parts.append(p * tasks[:, task : task + 1])
        return torch.cat(parts, 1), tasks


class _Fusion(nn.Module):
    """log P(t,c|x) = α r_c(x) + β e_c(x) + const (see `inference.fusion`). All experts are asked about all rows; what
    the settings would not have asked about a row does not count for it."""

    def __init__(self, method: IBPWF) -> None:
        super().__init__()
        self.alpha, self.beta = method.fusion_weights()
        self.asked: fusion.Experts = method.inference.experts_asked if self.beta else 0
        self.widths = [len(labels) for labels in method.classes]
        self.router, self.phi = method.inference.export_module(), method.features.export_module()
        owner = torch.arange(len(self.widths)).repeat_interleave(torch.tensor(self.widths))
        self.register_buffer("owner", F.one_hot(owner).double())
        asked = range(len(self.widths)) if self.asked else ()
        self.silent = [task for task in asked if method.is_silent(task)]
        self.experts = nn.ModuleList(
            nn.Identity() if task in self.silent else Expert.of(method, task) for task in asked
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        owner = self.get_buffer("owner")
        router = self.router(self.phi(x))
        scores = self.alpha * router
        if self.asked:
            mask = fusion.asked(router, self.widths, self.asked)
            nothing = torch.full_like(router[:, :1], -torch.inf)
            said = [nothing if t in self.silent else e(x).double() for t, e in enumerate(self.experts)]
            others = mask.double() @ owner.T == 0
            found = torch.cat(said, 1)
            found = found if self.asked == "all" else found.masked_fill(others, -torch.inf)
            scores = scores + self.beta * fusion.spoken_for(found, mask, self.widths, self.silent)
        joint = scores.softmax(1)
        return joint, joint @ owner
