"""Where the `dq` command starts. Imports nothing that may not be installed."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from dq.cli.app import app
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("typer", "rich"):
            raise
        print("error: the dq command needs typer and rich: pip install 'dqsegments[cli]'", file=sys.stderr)
        sys.exit(1)
    app(prog_name="dq")
