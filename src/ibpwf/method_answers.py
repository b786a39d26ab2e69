"""How the tasks of IBP-WF answer: what router, Gaussians and experts say of a row, as one prediction."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ibpwf.dispatch import accelerated
from ibpwf.errors import InputError
from ibpwf.factors.model import FactorModel
from ibpwf.factors.row_tasks import RowTasks
from ibpwf.inference import fusion
from ibpwf.inference.base import Features, TaskInference, infer_tasks
from ibpwf.inference.fusion import Calibration, by_task
from ibpwf.inference.opinion import EXPERT, REGRESSION
from ibpwf.inference.prediction import OwnTaskPrediction, Prediction, rows_by_value
from ibpwf.inference.uncertainty import draw_probabilities, entropy
from ibpwf.inference.versions import Versions
from ibpwf.limits import check_draws, check_rate
from ibpwf.settings import Settings
from ibpwf.storage.tensor_checks import NotWhole
from ibpwf.training.method import Method
from ibpwf.training.rows import ROWS_AT_ONCE
from ibpwf.views import Shape, Views, class_logits

T = TypeVar("T")


class AnsweringMethod(Method):
    """A factorized model with all that tells its tasks apart; how tasks come into it is left to `method.IBPWF`."""

    model: FactorModel
    settings: Settings
    features: Features
    inference: TaskInference
    versions: Versions

    @property
    def classes(self) -> list[tuple[int, ...]]:
        """Of every task."""
        return [one.classes for one in self.versions.newest]

    @property
    def calibrations(self) -> list[Calibration | None]:
        """Of every task's newest version."""
        return [one.calibration for one in self.versions.newest]

    def by_number(self, learned: Sequence[T]) -> Sequence[T]:
        if len(learned) != len(self.versions.all):
            raise NotWhole(f"{len(learned)} tasks are named, and the method's state has {len(self.versions.all)}")
        return [learned[place] for place in self.versions.places]

    def version(self, task: int) -> tuple[int, int]:
        return self.versions.owners[task], self.versions[task].number

    def place(self, task: int) -> int:
        """Where the model has the task, or older version, of this number."""
        return self.versions.places[task]

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def image_shape(self) -> Shape:
        """Of images that come as flat rows."""
        return None if self.settings.image_shape == "auto" else self.settings.image_shape

    def logits(self, x: Tensor, task: int) -> Tensor:
        views, place = self.views(task), self.place(task)
        parts = [self.model.logits(rows, place, views) for rows in torch.split(x, ROWS_AT_ONCE)]
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def expert(self, x: Tensor, task: int) -> Tensor | None:
        """A task's class scores beside those of others; None of a task that had nothing to tell apart."""
        return None if self.is_silent(task) else self.logits(x, task)

    def is_silent(self, task: int) -> bool:
        """Whether a task has one class, and no turns to learn it by."""
        return len(self.classes[task]) == 1 and self.model.tasks[self.place(task)].turns == 1

    def views(self, task: int) -> Views:
        """How images are looked at to answer for a task."""
        turns = self.model.tasks[self.place(task)].turns
        if self.settings.views == "plain" or turns == 1:
            return Views()
        return Views(turns, self.settings.mirror, self.image_shape)

    def class_scores(self, x: Tensor, experts: fusion.Experts, *, distances: bool = False) -> fusion.Scores:
        """What router and experts say of every class of every task (see `inference.fusion`), and how far rows lie
        from each, where that is asked for and known."""
        widths = tuple(len(labels) for labels in self.classes)
        parts: list[fusion.Scores] = []
        apart: list[Tensor] = []
        for rows in torch.split(x, ROWS_AT_ONCE):
            phi = self.features(rows)
            parts.append(fusion.look(self.inference.class_log_scores(phi), rows, widths, self.expert, experts))
            if distances and self.inference.has_distances:
                apart.append(self.inference.distances(phi))
        own = [part.experts for part in parts if part.experts is not None]
        return fusion.Scores(
            torch.cat([part.router for part in parts]),
            torch.cat(own) if own else None,
            widths,
            self.inference.class_levels(),
            torch.cat(apart) if apart else None,
            parts[0].silent,
        )

    def class_log_scores(self, x: Tensor) -> Tensor | None:
        """log P(t, c | x) up to a constant, N×ΣC, where task inference looks at every class (see `inference.fusion`);
        None where it tells tasks alone."""
        if not self.inference.has_class_scores:
            return None
        router, experts = self.fusion_weights()
        return self.class_scores(x, self.settings.experts if experts else 0).joint(router, experts)

    def fusion_weights(self) -> tuple[float, float]:
        """α of the router and β of the experts: what held-out rows say, or the user's β beside a router of 1."""
        weight = self.settings.expert_weight
        alone = not self.settings.experts or not weight
        if weight != "auto" and not alone:
            return fusion.ROUTER_WEIGHT, weight
        return fusion.weights(self.calibrations, alone=alone)

    def novelty(self, x: Tensor, rate: float) -> Tensor:
        """How unlike everything learned each row is, by router and experts; above 1 for a share `rate` of the rows of
        the tasks themselves."""
        check_rate(rate)
        if not self.inference.has_class_scores:
            raise InputError(
                f"inference is {self.settings.inference}, which does not look at every class; learn with "
                "inference='router' and held_out above 0 to tell what is new, or with a ContinualClassifier."
            )
        scores = self.class_scores(x, self.settings.experts or "likely", distances=True)
        return fusion.novelty(scores, self.calibrations, rate)

    def task_probabilities(self, x: Tensor) -> Tensor:
        """P(t | φ(x)) for every row and task (eq. phi_task_inference)."""
        joint = self.class_log_scores(x)
        if joint is not None:
            return by_task(joint, [len(labels) for labels in self.classes])
        with accelerated(self.accelerate):
            return infer_tasks(self.inference, self.features, x)

    def class_columns(self) -> tuple[tuple[int, int], ...]:
        return tuple((task, label) for task, labels in enumerate(self.classes) for label in labels)

    def predict(self, x: Tensor, task: Tensor | None, *, marginal: bool, draws: int, seed: int) -> Prediction:
        """A row's answer given its task, or with `marginal` mixed over tasks: p(c|x) = Σ_t ρ_t,c P(t|φ(x)) and its
        entropy (eqs. predictive_marginal, entropy_incr_class)."""
        joint = self.class_log_scores(x) if task is None and not draws else None
        if joint is not None:
            return self._joint_prediction(joint, marginal)
        inferred = self.task_probabilities(x) if task is None else None
        if task is None:
            assert inferred is not None
            task = inferred.argmax(1)
            if marginal:
                return self._mixed_prediction(x, task, inferred, draws, seed)
        of = RowTasks.of(task)
        together = None if draws else self._logits_of_all(x, of)
        if together is None:
            own, total, single = self._asked_by_task(x, of, draws, seed)
        else:
            (own, total), single = self._given_to_all(x, together, of), None
        information = None if single is None else (total - single).clamp(min=0)
        owners = of.called(self.versions.owners)
        return OwnTaskPrediction(own, self.versions.newest, owners, total, information, inferred)

    def _asked_by_task(self, x: Tensor, of: RowTasks, draws: int, seed: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """p(y|x,t) of every row, each through the network of its own task, N×C, and its entropy; with draws also the
        mean entropy of one. Sums run over a task's own classes only: further columns, though 0, would change the
        order of the sum and so its last bit."""
        if len(of.numbers) == 1:
            p, spread = self.class_probabilities(x, of.numbers[0], draws, seed)
            return (p, entropy(p), spread) if draws else (p, spread, None)
        width = max((len(self.versions[t].classes) for t in of.numbers), default=0)
        own = torch.zeros(len(x), width, dtype=torch.float64, device=x.device)
        total, single = own.new_zeros(len(x)), own.new_zeros(len(x))
        for place, rows in rows_by_value(of.place):
            p, spread = self.class_probabilities(x[rows], of.numbers[place], draws, seed)
            own[rows, : p.shape[1]], single[rows] = p, spread
            total[rows] = entropy(p) if draws else spread
        return own, total, single if draws else None

    def _given_to_all(self, x: Tensor, together: Tensor, of: RowTasks) -> tuple[Tensor, Tensor]:
        """p(y|x,t) of every row from the class scores of one pass, N×C, and its entropy."""
        widths = [len(self.versions[t].classes) for t in of.numbers]
        phi = self._phi_of(x, of.numbers)
        scores = together.double()
        temperatures = [self.temperature(t) for t in of.numbers]
        if phi is None and set(temperatures) != {1.0}:
            scores /= _of_rows(temperatures, of, x)
        if phi is not None:
            for place, rows in rows_by_value(of.place):
                own = scores[rows, : widths[place]]
                scores[rows, : widths[place]] = self._given(own, of.numbers[place], phi[rows])
        if min(widths) == max(widths):
            own = scores[:, : widths[0]].softmax(1)
            return own, entropy(own)
        own, total = torch.zeros_like(scores), scores.new_zeros(len(x))
        for width, rows in rows_by_value(torch.tensor(widths)[of.place]):  # see `_asked_by_task`
            p = scores[rows, :width].softmax(1)
            own[rows, :width], total[rows] = p, entropy(p)
        return own, total

    def _mixed_prediction(self, x: Tensor, task: Tensor, likely: Tensor, draws: int, seed: int) -> Prediction:
        """All tasks' answers by how likely each task is; those that are likely for no row are not asked."""
        columns, widths = self.class_columns(), [len(labels) for labels in self.classes]
        first = [0, *accumulate(widths)]
        given = torch.zeros(len(x), len(columns), dtype=torch.float64, device=x.device)
        single = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        for t in likely.any(0).nonzero().flatten().tolist():
            here = slice(first[t], first[t + 1])
            if draws:
                given[:, here], spread = self.class_probabilities(x, t, draws, seed)
                single += likely[:, t] * spread
            else:
                given[:, here] = self._given_task(x, t)
        owner, label = torch.tensor(columns, device=x.device).unbind(1)
        # The label is the inferred task's own best class (the paper's rule), also here.
        best = given.masked_fill(owner != task.unsqueeze(1), -1).argmax(1)
        probabilities = given * likely[:, owner]
        total = entropy(probabilities)
        return Prediction(
            labels=label[best],
            probabilities=probabilities,
            classes=columns,
            task=task,
            task_probabilities=likely,
            entropy=total,
            mutual_information=(total - single).clamp(min=0) if draws else None,
        )

    def _logits_of_all(self, x: Tensor, of: RowTasks) -> Tensor | None:
        """Class scores of rows of several tasks in one pass, where that can be had and is worth it."""
        if self.model.base != "frozen" or len(of.numbers) < 2:
            return None
        asked = of.called(self.versions.places).split(ROWS_AT_ONCE)
        found = []
        for rows, tasks in zip(torch.split(x, ROWS_AT_ONCE), asked, strict=True):
            part = self.model.mixed_logits(rows, tasks, if_cheaper=True)
            if part is None:
                return None
            found.append(part)
        if len(found) == 1:
            return found[0]
        widest = max(part.shape[1] for part in found)
        return torch.cat([F.pad(part, (0, widest - part.shape[1])) for part in found])

    def _joint_prediction(self, joint: Tensor, marginal: bool) -> Prediction:
        """Answers from log P(t, c | x): the likeliest class of all, and its task."""
        columns = self.class_columns()
        owner, label = torch.tensor(columns, device=joint.device).unbind(1)
        best = joint.argmax(1)
        others = owner != owner[best].unsqueeze(1)
        probabilities = (joint if marginal else joint.masked_fill(others, -torch.inf)).softmax(1)
        return Prediction(
            labels=label[best],
            probabilities=probabilities,
            classes=columns,
            task=owner[best],
            task_probabilities=by_task(joint, [len(labels) for labels in self.classes]),
            entropy=entropy(probabilities),
        )

    def class_probabilities(self, x: Tensor, task: int, draws: int = 0, seed: int = 0) -> tuple[Tensor, Tensor]:
        """p(y|x,t) and the mean entropy of one draw; with no draws, the locked selection is the only model."""
        if draws:
            check_draws(draws, sum(one.inputs * one.outputs for one in self.model.layers.values()))
            serial, place = self.versions[task].serial, self.place(task)
            generator = torch.Generator(self.device).manual_seed((seed * 1_000_003 + serial) % (1 << 63))
            stacked = self.model.drawn_states(place, draws, generator)
            classes, views = self.model.tasks[place].classes, self.views(task)
            kept = self.versions[task].opinion
            divisor, beside = self.temperature(task), None
            if kept is not None:
                expert, regression = self._weights_given(task)
                divisor, beside = 1 / expert, regression * kept.scores(self.phi(x))
            with self.model.shell() as net:
                return draw_probabilities(
                    net,
                    stacked,
                    x,
                    logits=lambda of, rows: class_logits(of, rows, classes, views) / divisor,
                    beside=beside,
                )
        p = self._given_task(x, task)
        return p, entropy(p)

    def _given_task(self, x: Tensor, task: int) -> Tensor:
        """p(y|x,t) from the locked selection."""
        return self._given(self.logits(x, task), task, self._phi_of(x, [task])).softmax(1)

    def phi(self, x: Tensor) -> Tensor:
        """φ of all rows."""
        return torch.cat([self.features(rows) for rows in torch.split(x, ROWS_AT_ONCE)])

    def _phi_of(self, x: Tensor, tasks: Sequence[int]) -> Tensor | None:
        """φ where one of the tasks has an opinion."""
        return self.phi(x) if any(self.versions[task].opinion is not None for task in tasks) else None

    def _given(self, own: Tensor, task: int, phi: Tensor | None) -> Tensor:
        """log P(c | x, t) up to a constant, from a task's own class scores and what it keeps of the router's."""
        opinion = self.versions[task].opinion
        if opinion is None or phi is None:
            return own.double() / self.temperature(task)
        expert, regression = self._weights_given(task)
        return expert * own.double() + regression * opinion.scores(phi)

    def _weights_given(self, task: int) -> tuple[float, float]:
        """Of a task's own class scores, and of its opinion: what its held-out rows say."""
        calibration = self.versions[task].calibration
        return (EXPERT, REGRESSION) if calibration is None or calibration.opinion is None else calibration.opinion

    def temperature(self, task: int) -> float:
        """What a task's class scores are divided by: 1, or what its held-out rows say."""
        calibration = self.versions[task].calibration
        return 1.0 if calibration is None else calibration.temperature


def _of_rows(values: Sequence[float], of: RowTasks, x: Tensor) -> Tensor:
    """Each row's own of values that tasks have, N×1, where x is."""
    return torch.tensor(values, dtype=torch.float64)[of.place].to(x.device).unsqueeze(1)
