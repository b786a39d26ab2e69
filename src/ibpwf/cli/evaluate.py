"""`ibpwf evaluate`: accuracy on a labeled file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ibpwf.cli.options import AsJson, Columns, Fast, Images, Labeled, OfData, OnDevice, flag
from ibpwf.cli.output import Screen, counted, percent, print_json
from ibpwf.cli.parsing import option
from ibpwf.errors import printable


@dataclass(kw_only=True)
class Evaluate(OfData, Labeled, Columns, Images, Fast, OnDevice, AsJson):
    """Compare predictions with a file's labels: accuracy with the task known and inferred, class by class."""

    task: str | None = option(None, "The task of all rows.", metavar="NAME", usual="by their labels")

    def run(self) -> None:
        options = self.read_options(with_labels=True)
        from ibpwf.estimator.files import load_classifier, read_like_before
        from ibpwf.estimator.scoring import score_rows

        classifier = load_classifier(self.model, self.device)
        classifier = classifier.fast() if self.fast else classifier
        if self.task is not None:
            classifier.learner_.task_number(self.task)  # an unknown name is rejected with the nearest one
        scores = score_rows(classifier, read_like_before(classifier, self.data, options), self.task, flag).to_json()
        if self.json:
            print_json({"model": self.model, "data": self.data, "task": self.task, **scores})
        else:
            self._show(Screen(), scores, classifier.false_alarm_rate)

    def _show(self, screen: Screen, found: dict[str, Any], rate: float) -> None:
        classes = len(found["classes"])
        what = f"{counted(found['rows'], 'row')}, {classes} class{'es' * (classes != 1)}"
        screen.say(f"{printable(str(self.data))}: {what}", "bold")
        never = found["never_learned"]
        if never["rows"]:
            names = printable(", ".join(list(never["labels"])[:5])) + (", …" if len(never["labels"]) > 5 else "")
            screen.say(
                f"and {counted(never['rows'], 'row')} with labels never learned ({names}), not counted below; "
                f"{percent(never['novel'])} of them are flagged as novel"
            )
        if not found["rows"]:
            return
        told, accuracy = found["rows_with_task"], found["accuracy"]
        note = f"on {told:,} rows whose label tells the task" if told < found["rows"] else ""
        rows = [
            ("accuracy, task known", percent(accuracy["task_given"]), note),
            ("accuracy, task inferred", percent(accuracy["task_inferred"]), ""),
            ("task inference", percent(found["task_inference"]), note),
            ("mean entropy", f"{found['mean_entropy']:.3f} nats", ""),
            (
                "flagged as novel",
                percent(found["novel"]),
                f"{100 * rate:g} % is usual for rows like those learned",
            ),
        ]
        screen.say()
        screen.table(("", "value", ""), rows, right=("value",), show_heads=False)
        screen.say()
        heads = ("class", "task", "rows", "known", "inferred", "precision", "most often confused with")
        screen.table(heads, map(_class_row, [found] * classes, found["classes"]), right=heads[2:6])


def _class_row(found: dict[str, Any], entry: dict[str, Any]) -> list[str]:
    label = entry["label"]
    mistakes = [(name, count) for name, count in found["confusion"][label].items() if name != label]
    shares = [percent(entry[key]).removesuffix(" %") for key in ("task_given", "task_inferred", "precision")]
    confused = ", ".join(f"{name} ({count})" for name, count in mistakes[:2])
    return [label, ", ".join(entry["tasks"]), f"{entry['rows']:,}", *shares, confused]
