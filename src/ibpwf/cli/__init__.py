"""The program `ibpwf`: a module per command; `program` parses and calls, `output` prints."""

from ibpwf.cli.program import main

__all__ = ["main"]
