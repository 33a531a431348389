"""The process that `dq demo` kills: appends until it dies, and tells each offset once it is acknowledged."""

from __future__ import annotations

import sys

import dq


def main() -> None:
    path, topic_name = sys.argv[1:]
    with dq.open(path) as log:
        topic = log.topic(topic_name)
        while True:
            [appended] = topic.append_many([b"written before the kill"] * 10, partition=0)
            print(appended.next_offset, flush=True)


if __name__ == "__main__":
    main()
