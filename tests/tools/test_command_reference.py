"""docs/cli.md says what the commands' signatures say."""

from __future__ import annotations

from tools import command_reference


def test_an_option_without_a_default_must_be_given_and_no_python_object_is_printed() -> None:
    page = command_reference.page()
    assert "<class" not in page
    (line,) = [line for line in page.splitlines() if line.startswith("| `--to` ")]
    assert line.endswith("| required |")
