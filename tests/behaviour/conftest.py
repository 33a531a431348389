"""What every kind of DQ must do, run over each of them: a data directory, and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import dq


@pytest.fixture(params=["directory", "memory"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dq.EmbeddedLog]:
    path = str(tmp_path / "data") if request.param == "directory" else ":memory:"
    with dq.open(path, flush="os") as opened:
        yield opened


@pytest.fixture
def values() -> Callable[[Iterator[dq.Record]], list[bytes | None]]:
    return lambda records: [record.value for record in records]
