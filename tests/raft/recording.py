"""Records what this release writes: `python -m tests.raft.recording NAME` makes tests/raft/fixtures/NAME, once.

A recording is a segment of a metadata log and `expected.json`, which says what it folds into. Make one whenever an
event gets a new version or a new type; those that are there are never made anew, only read.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from dq.engine.files import OsFiles
from dq.engine.raft.event_log import load_image, read_events
from dq.engine.raft.events import Event
from dq.engine.raft.history import describe
from dq.engine.raft.image import state_hash
from dq.engine.segments.segment import file_name
from tests.raft.changes import story
from tests.raft.metadata_logs import open_log, open_view, put

FIXTURES = Path(__file__).parent / "fixtures"


def record(target: Path, events: list[Event]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        log = open_log(OsFiles(), directory=f"{scratch}/log")
        for event in events:
            put(log, [event])
        log.close()
        (target / file_name(0)).write_bytes(Path(scratch, "log", file_name(0)).read_bytes())
    write_expectation(target)


def write_expectation(target: Path) -> None:
    view = open_view(OsFiles(), directory=str(target))
    image = load_image(OsFiles(), view)
    expected = {
        "state_hash": state_hash(image),
        "types": [event.change.type for _, event in read_events(view)],
        "image": describe(image),
    }
    (target / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    (name,) = sys.argv[1:]
    (FIXTURES / name).mkdir()
    record(FIXTURES / name, story())
