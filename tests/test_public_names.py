"""What a user sees of the package: names that can be completed, fetched when they are first used."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

PACKAGES = ("ibpwf", "ibpwf.data", "ibpwf.backbones", "ibpwf.lab", "ibpwf.lab.data")


@pytest.mark.parametrize("name", PACKAGES)
def test_dir_lists_the_public_names_and_every_one_of_them_is_there(name: str) -> None:
    package = importlib.import_module(name)
    assert dir(package) == sorted(package.__all__)
    for public in package.__all__:
        assert getattr(package, public) is not None
    with pytest.raises(AttributeError):
        package.no_such_name  # noqa: B018


def test_listing_the_names_imports_no_torch() -> None:
    code = "import sys, ibpwf; assert 'Learner' in dir(ibpwf); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
