"""`python -m dq.cli` is `dq`."""

from __future__ import annotations

from dq.cli.main import main

main()
