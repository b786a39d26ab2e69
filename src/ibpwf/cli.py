"""The command line: parses, calls, prints. Errors are one sentence and exit code 2."""

from __future__ import annotations

import os
import sys

import typer

from ibpwf.errors import IBPWFError

app = typer.Typer(
    name="ibpwf",
    help="Continual learning that forgets nothing: tasks share a growing dictionary of weight factors (IBP-WF).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(asked: bool) -> None:
    if asked:
        from ibpwf import __version__

        typer.echo(f"ibpwf {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
    debug: bool = typer.Option(False, "--debug", help="Show the whole traceback of an error."),
) -> None:
    pass


def add_commands() -> None:
    """All commands, each module imported only now: `import ibpwf.cli` stays quick."""
    if app.registered_commands:
        return
    from ibpwf.commands import evaluate, export, learn, model, predict
    from ibpwf.lab.commands import bench, compare, data, report, reproduce, run

    app.command("learn")(learn.learn_command)
    app.command("predict")(predict.predict_command)
    app.command("evaluate")(evaluate.evaluate_command)
    app.command("inspect")(model.inspect_command)
    app.command("verify")(model.verify_command)
    app.command("forget")(model.forget_command)
    app.command("export")(export.export_command)
    app.command("run")(run.run_command)
    app.command("compare")(compare.compare_command)
    app.command("methods")(compare.methods_command)
    app.command("reproduce")(reproduce.reproduce_command)
    app.command("report")(report.report_command)
    app.add_typer(data.app, name="data")
    app.command("bench")(bench.bench_command)


def main() -> None:
    """Entry point of `ibpwf` and `python -m ibpwf`."""
    debug = "--debug" in sys.argv
    if debug:
        sys.argv.remove("--debug")  # accepted anywhere on the line
    add_commands()
    try:
        app(prog_name="ibpwf")
    except IBPWFError as error:
        if debug:
            raise
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        if debug:
            raise
        where = f"'{error.filename}': " if error.filename else ""
        sys.stderr.write(f"error: {where}{error.strerror or error}. Check the path, its rights and the disk.\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        sys.exit(130)
