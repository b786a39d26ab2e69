"""The page of own data, from result files made here."""

from __future__ import annotations

from pathlib import Path

from ibpwf.storage.files import write_json
from tools import own_data_page


def test_the_page_shows_tables_images_and_what_they_cost(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "own-data"
    (folder / "two-cores").mkdir(parents=True)
    made = {"commit": "0123456789abcdef", "environment": {"cores": 2, "threads": 1, "torch": "2.13"}}
    best = {"setting": "epochs=40", "given": 83.0, "default": 82.5, "seeds": [0]}
    summary = {"given": 82.5, "given_std": 0.25, "inferred": 77.0, "inferred_std": 0.5, "best_of_ten": best}
    summary |= {"seconds": 41.0, "cpu_seconds": 80.0, "folder_bytes": 5e6, "rows_bytes": 8e5}
    seeds = [{"seed": n, "rows": [9, 9], "others": {"perceptron": {"given": 80.0 + n}}} for n in (0, 1)]
    table = {"name": "weather", "command": ["python a.py", "python b.py"], "summary": summary, "seeds": seeds, **made}
    runs = [{"recipe": "images", "processor_seconds": [100.0, 50.0], "model_bytes": 3_000_000}]
    seen = {"mean": 85.25, "std": 0.5}
    images = {"data": "cifar10 as PNG files", "command": "python c.py", "seeds": [0, 1], "runs": runs, **made}
    images |= {"given": seen, "inferred": seen, "learning_seconds": {"mean": 90.0, "std": 0.0}}
    write_json(folder / "weather.json", table)
    write_json(folder / "two-cores" / "weather.json", table)
    write_json(folder / "cifar10-images.json", images)
    write_json(folder / "two-cores" / "cifar10-images.json", images)
    own_data_page.main([str(tmp_path)])
    text = (folder / "README.md").read_text(encoding="utf-8")
    results = "| weather | 2 | 2 | 82.50 ± 0.25 | 77.00 ± 0.50 | – | 80.50 | – | 83.00 (`epochs=40`), 82.50; 1 seed |"
    assert results in text
    assert "| cifar10 as PNG files | images | 2 | 85.25 ± 0.50 | 85.25 ± 0.50 |" in text
    assert "| weather | 41 | 80 | 5.0 MB | 0.8 MB |" in text
    assert "| cifar10 as PNG files, recipe images | 90 | 150 | 3.0 MB | – |" in text
    assert "`python a.py` and 1 more like it, by other processes; commit 0123456789ab" in text
