"""The picture of ranks says what the result file says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import ranks_figure

LAYERS = ("backbone.net.stem.conv", "backbone.net.levels.0.0.layers.1.conv", "backbone.net.levels.4.1.layers.0.conv")
RUN = {
    "seed": 0,
    "tasks": [{"name": "0/1"}, {"name": "2/3"}],
    "added": [
        {"ranks": dict(zip(LAYERS, (1, 2, 5), strict=True)), "new": dict(zip(LAYERS, (1, 2, 5), strict=True))},
        {"ranks": dict(zip(LAYERS, (1, 3, 4), strict=True)), "new": dict(zip(LAYERS, (0, 1, 0), strict=True))},
    ],
}


def test_every_task_and_layer_has_its_numbers() -> None:
    tasks, layers, panels = ranks_figure.tables(RUN)
    assert tasks == ["0/1", "2/3"]
    assert layers == ["stem", "1.1 project", "5.2 expand"]
    assert panels == [[[1, 2, 5], [1, 3, 4]], [[1, 2, 5], [0, 1, 0]]]
    assert ranks_figure.layer_title("backbone.net.levels.7.conv") == "last"


def test_a_picture_is_drawn_and_a_file_without_ranks_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    result, out = tmp_path / "result.json", tmp_path / "images" / "ranks.png"
    result.write_text(json.dumps({"runs": [RUN]}))
    assert ranks_figure.main([str(result), "-o", str(out)]) == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    assert ranks_figure.main([str(result), "-o", str(out), "--seed", "3"]) == 2
    assert "no ranks of seed 3" in capsys.readouterr().err
