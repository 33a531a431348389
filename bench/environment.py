"""What a run ran on: the machine and the versions, without anything that names the one machine it was."""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from dq.engine.segments.crc import implementation

PACKAGES = (
    "msgpack",
    "lmdb",
    "crc32c",
    "pyarrow",
    "numpy",
    "lz4",
    "zstandard",
    "litequeue",
    "persist-queue",
    "rocksdict",
    "pytest-benchmark",
)


def describe(folder: Path) -> dict[str, Any]:
    """`folder` is where the files of the run are."""
    return {
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "system": f"{platform.system()} {platform.release()}",
            "file_system": _file_system(folder),
        },
        "versions": {
            "DQ": metadata.version("dqsegments"),
            "Python": f"{platform.python_implementation()} {platform.python_version()}",
            "SQLite": sqlite3.sqlite_version,
            **{package: _version(package) for package in PACKAGES},
        },
        "crc32c": implementation,
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _file_system(folder: Path) -> str:
    """The type of the file system that a folder is on."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return sys.platform
    path = folder.resolve()
    around = [mount for mount in mounts if path.is_relative_to(mount[1])]
    return max(around, key=lambda mount: len(mount[1]))[2] if around else "unknown"
