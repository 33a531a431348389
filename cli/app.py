"""All commands put together, and the options that stand before them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

import dq
from dq.cli import cat, consume, demo, doctor, events, produce, repair, state, topics, verify
from dq.cli.errors import OneLineErrors
from dq.cli.options import DATA_VARIABLE

_ORDER = ["demo", "topics", "produce", "consume", "cat", "events", "state", "verify", "repair", "doctor"]


class Commands(OneLineErrors):
    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=_ORDER.index)


app = typer.Typer(
    cls=Commands,
    help="DQ: an append-only, partitioned log in plain files.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dq {dq.__version__}")
        raise typer.Exit


@app.callback()
def before(
    data: Annotated[
        Path | None, typer.Option("--data", "-d", metavar="DIR", help="As --data of the command.", hidden=True)
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    if data is not None:
        os.environ[DATA_VARIABLE] = str(data)


app.command()(demo.demo)
app.add_typer(topics.app, name="topics")
app.command()(produce.produce)
app.command()(consume.consume)
app.command()(cat.cat)
app.command()(events.events)
app.command()(state.state)
app.command()(verify.verify)
app.command()(repair.repair)
app.command()(doctor.doctor)
