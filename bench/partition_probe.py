"""A process that opens a log with many partitions and tells what that costs, as JSON on its standard output.

    python -m bench.partition_probe FOLDER

The stages: after the import, after opening, after one append to each partition, after one read from each.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import dq
from bench.crash_writer import TOPIC

PAGE = os.sysconf("SC_PAGE_SIZE")


def usage() -> dict[str, Any]:
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
    return {"resident_bytes": resident, "file_handles": len(os.listdir("/proc/self/fd")) - 1}


def probe(folder: str) -> list[dict[str, Any]]:
    stages = [{"stage": "import", "seconds": 0.0, **usage()}]
    start = time.perf_counter()

    def note(stage: str) -> None:
        nonlocal start
        stages.append({"stage": stage, "seconds": time.perf_counter() - start, **usage()})
        start = time.perf_counter()

    with dq.open(folder) as log:
        topic = log.topic(TOPIC)
        note("open")
        for partition in range(topic.partitions):
            topic.append(b"%d" % partition, partition=partition)
        note("append to each")
        for partition in range(topic.partitions):
            assert next(topic.read(partition)).value == b"%d" % partition
        note("read from each")
    note("close")
    return stages


if __name__ == "__main__":
    print(json.dumps(probe(sys.argv[1])))
