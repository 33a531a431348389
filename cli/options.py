"""Options that several commands have, and opening the data directory that they name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import dq

DATA_VARIABLE = "DQ_DATA"
DEFAULT_DATA = Path("dq-data")

Data = Annotated[Path, typer.Option("--data", "-d", metavar="DIR", envvar=DATA_VARIABLE, help="The data directory.")]
Directory = Annotated[
    Path | None, typer.Argument(metavar="DIR", help="The data directory; as --data.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The name of the topic.", show_default=False)]


def open_to_read(data: Path) -> dq.EmbeddedLog:
    """Works beside a running writer."""
    return dq.open(data, read_only=True)


def open_to_write(data: Path, *, create: bool = False) -> dq.EmbeddedLog:
    return dq.open(data, create=create)
