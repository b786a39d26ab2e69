"""The tables about trained networks say what the result files say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tools import trained_networks_page as page_tool

PAGE = f"before\n\n{page_tool.BEGIN}\nold\n{page_tool.END}\nafter\n"


def result(runs: list[dict[str, Any]], **about: Any) -> dict[str, Any]:
    names = [name for name, value in runs[0].items() if isinstance(value, float)]
    summary = {name: {"mean": sum(run[name] for run in runs) / len(runs), "std": 0.5} for name in names}
    told = {"command": "python b.py", "commit": "0123456789abcdef", "environment": {"device": "a GPU"}}
    return {**told, "seeds": list(range(len(runs))), "summary": summary, "runs": runs, **about}


def sequence(gains: list[tuple[float, float]]) -> dict[str, Any]:
    tasks = [{"together": together, "alone": alone} for together, alone in gains]
    kept = {"of": "images", "most_forgotten": 0.0, "tasks_whose_logits_changed": 0}
    return {**kept, "together": 97.0, "alone": 97.5, "tasks": tasks}


def test_what_was_measured_is_told_and_the_rest_left_out() -> None:
    lora = {"lora_by": "peft 9", "encoder time_ratio": 0.8, "encoder memory_ratio": 1.05}
    accuracy = {
        "factors, α = 6": 98.5,
        "factors, α = 6, per cent of the base": 2.2,
        "factors, α = 6, mean rank": 4.0,
        "LoRA 4": 98.25,
        "LoRA 4, per cent of the base": 2.8,
    }
    files = {
        "lora": result([lora], asked={"networks": ["encoder"]}),
        "lora-accuracy": result([accuracy]),
        "lora-accuracy-8": result([{"LoRA 8": 98.75, "LoRA 8, per cent of the base": 5.5}]),
        "mixed-batch-cpu": {
            **{key: value for key, value in result([{}]).items() if key in ("command", "commit", "environment")},
            "measured": {
                "vit": {"mixed / one": 1.2345, "one after the other / one": 7.0, "factors": {"a": 2, "b": 9}}
            },
        },
        "sequence-images": result([sequence([(98.0, 98.5), (96.0, 96.5)]), sequence([(99.0, 98.5), (95.9, 96.6)])]),
    }
    made = page_tool.with_tables(PAGE, files, picture=False)
    assert made.startswith("before\n")
    assert made.endswith("after\n")
    assert "old" not in made
    assert "| encoder | 0.80 | 1.05 |" in made
    assert made.index("| factors, α = 6 | 2.2 | 98.50 |") < made.index("| LoRA 4 | 2.8 | 98.25 |")
    assert "| LoRA 4 | 2.8 | 98.25 |\n\n| task given (1 seed, a GPU) |" in made  # and a table for the other file
    assert "|---|---:|---:|\n| LoRA 8 | 5.5 | 98.75 |" in made
    assert "mean rank" not in made.replace("same mean rank", "")
    assert "| vit (a GPU) | 9 | 1.23 | 7.00 |" in made
    assert "| images (2 seeds, a GPU) | 2 | 97.00 ± 0.50 | 97.50 ± 0.50 | -0.60 | 0 | 0 |" in made
    assert "Reuters" not in made
    assert "`python b.py`, commit 0123456789ab" in made


def test_the_picture_is_drawn_where_there_are_ranks(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    ranks = {"backbone.net.stem.conv": 2}
    run = {"class": 94.0, "given": 99.0, "tasks": [{"name": "0/1"}], "added": [{"ranks": ranks, "new": ranks}]}
    folder = tmp_path / "results" / "trained-networks"
    folder.mkdir(parents=True)
    for name, settings in {"cifar10": {"backbone_grid": [3, 1]}, "cifar10-whole": {}}.items():
        told = result([{**run, "settings": settings}], asked={"layers": "late", "size": 96})
        (folder / f"{name}.json").write_text(json.dumps(told))
    (tmp_path / "trained-networks.md").write_text(PAGE)
    page_tool.main([str(tmp_path)])
    made = (tmp_path / "trained-networks.md").read_text()
    whole, places = "late layers, 96 pixels", "late layers, 96 pixels, router's features of 3 × 3 places"
    assert f"factors in … | {whole} (1 seed, a GPU) | {places} (1 seed, a GPU) |" in made
    assert "| class, task inferred | 94.00 | 94.00 |" in made
    assert "| factors that a task reads in a layer | – | – |" in made
    assert "![factors by task and layer](images/ranks.png)" in made
    assert (tmp_path / "images" / "ranks.png").read_bytes().startswith(b"\x89PNG")
    page_tool.main([str(tmp_path)])
    assert (tmp_path / "trained-networks.md").read_text() == made
