"""`ibpwf methods`: the methods of the benchmark suite."""

from __future__ import annotations

from dataclasses import dataclass

from ibpwf.cli.options import AsJson
from ibpwf.cli.output import Screen, print_json


@dataclass(kw_only=True)
class Methods(AsJson):
    """List the methods: what each does, what it stores between tasks, which settings it supports."""

    def run(self) -> None:
        from ibpwf.lab.methods import methods

        found = methods()
        if self.json:
            print_json(
                [
                    {"name": name, "summary": one.summary, "stores": one.stores, "settings": one.answers}
                    for name, one in found.items()
                ]
            )
            return
        rows = [(name, one.summary, one.stores, ", ".join(one.answers)) for name, one in found.items()]
        Screen().table(("method", "what it does", "stores", "settings"), rows, whole=("method", "settings"))
