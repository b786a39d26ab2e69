"""The files of a run as pydantic models: what does not fit is named with its place, never guessed."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ibpwf.errors import StoreError
from ibpwf.lab.evaluation.metrics import Matrix
from ibpwf.lab.experiments.paper import tolerance


class Record(BaseModel):
    """An object of a JSON file that someone else may have written. Fields that this ibpwf does not know are passed
    over; a number is never taken from text, is finite, and no larger than anything that is measured."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False, extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _measurable(cls, content: Any) -> Any:
        for name, value in content.items() if isinstance(content, dict) else ():
            if _largest(value) > LARGEST:
                raise ValueError(f"'{name}' holds a number beyond {LARGEST:g}, which nothing measured is")
        return content


LARGEST = 1e30
"""Beyond it sums and squares overflow, and axes with them."""


def _largest(value: object) -> float:
    """The largest number inside JSON, without its sign."""
    if isinstance(value, (int, float)):
        return abs(value)
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max(map(_largest, inside), default=0.0)


R = TypeVar("R", bound=Record)
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0)]


def validated(model: type[R], content: object, where: str) -> R:
    """The content of a file as a record, or a `StoreError` that names the file, the field and what it holds."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise StoreError(_explained(error.errors(include_url=False)[0], where)) from None


def _explained(error: Any, where: str) -> str:
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"]).lstrip(".")
    if error["type"] == "missing":
        return f"{where} has no field '{place}'."
    shown = repr(error["input"])
    shown = shown if len(shown) <= 60 else shown[:59] + "…"
    objects = error["type"] in ("model_type", "dict_type")
    expected = "an object is expected" if objects else error["msg"][:1].lower() + error["msg"][1:]
    return f"{where}: field '{place}' is {shown}: {expected}." if place else f"{where} holds {shown}: {expected}."


class Version(Record):
    version: Count = Field(alias="schema")


def check_schema(content: object, newest: int, where: str) -> None:
    """A file of a newer ibpwf may mean other things by the same fields."""
    found = validated(Version, content, where).version
    if found > newest:
        raise StoreError(
            f"{where} has schema version {found}, and this ibpwf reads up to {newest}: upgrade ibpwf to read it."
        )


class Spread(Record):
    """Mean and standard deviation over seeds."""

    mean: float
    std: float | None = None

    def shown(self, digits: int = 2) -> str:
        mean = f"{self.mean:.{digits}f}"
        mean = mean.removeprefix("-") if float(mean) == 0 else mean
        return mean if self.std is None else f"{mean} ± {self.std:.{digits}f}"

    def reaches(self, paper: Spread) -> bool:
        """Our mean is better than the paper's, or below it by no more than the tolerance."""
        return self.mean >= paper.mean - tolerance(paper.std)

    def beats(self, paper: Spread) -> bool:
        """Better than the paper's by more than the tolerance."""
        return self.mean > paper.mean + tolerance(paper.std)


class Task(Record):
    """`classes` is None where they are not recorded."""

    name: str
    classes: list[Any] | None = None


class Use(Record):
    """Factors of one layer for one task."""

    active: float
    new: float
    reused: float
    total: float


LayerUse = dict[str, Use]


class Uncertainty(Record):
    """After one task: the mean entropy of every task's test set, and how well it tells learnt ones from others."""

    entropy: list[Share] = Field(min_length=1)
    auroc: float | None = None


class Description(Record):
    """What result.json and config.json have in common: what was run."""

    scenario: str
    method: str
    preset: str
    seeds: list[Count] = Field(min_length=1)
    changes: dict[str, Any] | None = None
    settings: dict[str, Any] | None = None
    network: dict[str, Any] | None = None
    note: str = ""


class Config(Description):
    tasks: Count | None = None  # how many, where not all


class SeedMatrix(Record):
    task: Matrix | None = None
    class_: Matrix | None = Field(default=None, alias="class")


class SeedFactors(Record):
    per_task: list[LayerUse]


class SeedUncertainty(Record):
    per_task: list[Uncertainty | None]


class Accuracy(Record):
    task: Spread | None = None
    class_: Spread | None = Field(default=None, alias="class")
    task_inference: Spread | None = Field(default=None, alias="task-inference")

    def named(self) -> dict[str, Spread]:
        found = {"task": self.task, "class": self.class_, "task-inference": self.task_inference}
        return {name: spread for name, spread in found.items() if spread is not None}


class Seconds(Record):
    train: float | None = None


class Beside(Record):
    """Another method, run beside a run."""

    method: str
    class_: Spread = Field(alias="class")


class Result(Description):
    """result.json: what a finished run measured."""

    tasks: list[Task]
    accuracy: Accuracy
    task_inference: Spread | None = None
    forgetting: Spread | None = None
    backward_transfer: Spread | None = None
    forward_transfer: Spread | None = None
    beside: Beside | None = None
    paper: Accuracy | None = None
    matrix: list[SeedMatrix]
    factors: list[SeedFactors] | None = None
    uncertainty: list[SeedUncertainty] | None = None
    parameters: Spread | None = None
    seconds: Seconds | None = None
    samples_per_second: float | None = None
    environment: dict[str, Any] | None = None
    command: str
    commit: str | None = None

    def measures(self) -> dict[str, Spread]:
        found = {
            **self.accuracy.named(),
            "task-inference": self.task_inference,
            "forgetting": self.forgetting,
            "backward_transfer": self.backward_transfer,
            "forward_transfer": self.forward_transfer,
        }
        return {name: spread for name, spread in found.items() if spread is not None}


class Row(Record):
    """What one seed of an unfinished run measured after a task."""

    task: str
    task_accuracy: list[float]
    class_accuracy: list[float]
    factors: LayerUse | None = None
    uncertainty: Uncertainty | None = None


class Rows(Record):
    rows: list[Row]


class Epoch(Record):
    """One line of metrics.jsonl."""

    seed: Count
    task: Count = Field(alias="task_number")
    phase: str
    epoch: Count
    epochs: Count
    loss: float
    extra: float
