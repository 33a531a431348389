"""`dq demo`: a guided tour of the embedded engine. Ends by itself, and says what it measured."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

import dq
from dq.cli.errors import FAILED
from dq.cli.output import err, number, out, plural, rate, seconds, size, table
from dq.cli.verify import check

_ORDERS, _LEDGER = "demo-orders", "demo-ledger"
_BATCH = 1000
_LONGEST = 3.0  # seconds for any one of the measurements


def demo(
    data: Annotated[
        Path | None,
        typer.Option("--data", "-d", metavar="DIR", help="Keep the data here; without it, in a temporary place."),
    ] = None,
    records: Annotated[int, typer.Option("--records", min=1000, help="How many to write at most.")] = 500_000,
) -> None:
    """Take a guided tour of the embedded engine, in a few seconds."""
    with ExitStack() as stack:
        path = str(data) if data else stack.enter_context(tempfile.TemporaryDirectory(prefix="dq-demo-"))
        tour = _Tour(path, records)
        tour.run()
        if data:
            out.print(f"\nLook around: [bold]dq topics --data {path}[/], [bold]dq consume {_ORDERS} --data {path}[/]")
        else:
            out.print("\nThe data is gone now. [bold]dq demo --data ./dq-data[/] keeps it, to look around in.")
    if not tour.ok:
        raise typer.Exit(FAILED)


class _Tour:
    def __init__(self, path: str, records: int) -> None:
        self._path = path
        self._records = records
        self._measured: list[tuple[str, str, str]] = []  # what, how much, how fast
        self._chapter = 0
        self.ok = True

    def run(self) -> None:
        out.print("[bold]DQ: an append-only log as a library.[/] Each step shows a call, and what it did.")
        with dq.open(self._path) as log:
            orders, ledger = self._create(log)
            self._append_one(orders)
            self._append_many(orders)
            self._produce(orders)
            self._read(orders)
            self._follow(ledger)
            self._consume(orders)
            self._append_on_condition(ledger)
        self._kill()
        self._verify()
        self._summary()

    # ------------------------------------------------------------ telling

    def _begin(self, title: str, code: str) -> None:
        self._chapter += 1
        out.print(f"\n[bold cyan]{self._chapter}. {title}[/]")
        out.print(f"   [dim]{code}[/]", soft_wrap=True)

    def _say(self, text: str) -> None:
        out.print(Padding(text, (0, 0, 0, 3), expand=False))

    def _measure(self, what: str, count: int, elapsed: float, unit: str = "records") -> None:
        speed = rate(count, elapsed, unit)
        self._measured.append((what, f"{number(count)} in {seconds(elapsed)}", speed))
        self._say(f"{plural(count, unit[:-1])} in {seconds(elapsed)}: [green]{speed}[/]")

    # ------------------------------------------------------------ the chapters

    def _create(self, log: dq.EmbeddedLog) -> tuple[dq.Topic, dq.Topic]:
        self._begin("A directory, and topics in it", 'log = dq.open(path); log.create_topic("orders", partitions=4)')
        for topic in log.topics():
            if topic.name in (_ORDERS, _LEDGER):
                log.delete_topic(topic.name)
        orders, ledger = log.create_topic(_ORDERS, partitions=4), log.create_topic(_LEDGER)
        self._say(f"{log.path}: no server, plain files, one writer and any number of readers")
        return orders, ledger

    def _append_one(self, orders: dq.Topic) -> None:
        self._begin("Append, durably", 'orders.append(b"hello", key=b"k")')
        begin = time.monotonic()
        count = 0
        while count < 500 and time.monotonic() - begin < _LONGEST / 2:
            appended = orders.append(b"hello", key=b"customer-%d" % (count % 100))
            count += 1
        elapsed = time.monotonic() - begin
        self._measure("append, one by one", count, elapsed)
        self._say(f"each one was on stable storage when append returned, after {seconds(elapsed / count)}")
        self._say(f"the last one: partition {appended.partition}, offset {appended.offset}")

    def _append_many(self, orders: dq.Topic) -> None:
        self._begin("Append many at once", "orders.append_many(values)")
        values = [b"order %013d " % number_ + b"." * 80 for number_ in range(_BATCH)]
        begin = time.monotonic()
        count = 0
        with _progress("appending", self._records) as advance:
            while count < self._records and time.monotonic() - begin < _LONGEST:
                orders.append_many(values)
                count += _BATCH
                advance(_BATCH)
        self._measure(f"append, {number(_BATCH)} at a time", count, time.monotonic() - begin)

    def _produce(self, orders: dq.Topic) -> None:
        self._begin("A buffered producer", "producer.send(value)  # returns at once")
        value = b"." * 100
        begin = time.monotonic()
        count = 0
        with orders.producer() as producer:
            while count < self._records and time.monotonic() - begin < _LONGEST:
                for _ in range(_BATCH):
                    delivery = producer.send(value)
                count += _BATCH
            last = delivery.result()
        self._measure("producer, one send each", count, time.monotonic() - begin)
        self._say(f"the last delivery: partition {last.partition}, offset {last.offset}, durable")

    def _read(self, orders: dq.Topic) -> None:
        self._begin("Read it all back", "for record in orders.read(): ...")
        begin = time.monotonic()
        count = sum(1 for _ in orders.read())
        self._measure("read, record by record", count, time.monotonic() - begin)
        begin = time.monotonic()
        count = sum(len(batch) for batch in orders.read_batches())
        self._measure("read, batch by batch", count, time.monotonic() - begin)

    def _follow(self, ledger: dq.Topic) -> None:
        self._begin("Follow what is being written", "for record in ledger.read(follow=True): ...")
        ready = threading.Event()

        def write() -> None:
            ready.wait()
            for number_ in range(5):
                ledger.append(b"%d" % time.perf_counter_ns(), key=b"%d" % number_)
                time.sleep(0.02)

        writer = threading.Thread(target=write)
        writer.start()
        records = ledger.read(follow=True, timeout=5)
        ready.set()
        delays = []
        for record in records:
            delays.append((time.perf_counter_ns() - int(record.value or b"0")) / 1e9)
            if len(delays) == 5:
                break
        writer.join()
        self._say(f"5 records, each seen {seconds(sorted(delays)[2])} after its append began")
        self._measured.append(("append to reader", "median of 5", seconds(sorted(delays)[2])))

    def _consume(self, orders: dq.Topic) -> None:
        self._begin(
            "A consumer that remembers", 'billing = orders.consumer("billing"); billing.poll(); billing.commit()'
        )
        with orders.consumer("billing") as billing:
            self._say(f"a new consumer is behind by {plural(billing.lag().records, 'record')}")
            taken = len(billing.poll(max_records=1000))
            billing.commit()
            left = billing.lag().records
            self._say(f"polled and committed {number(taken)}, {number(left)} left; polled 500 more, without a commit")
            billing.poll(max_records=500)
        with orders.consumer("billing") as billing:
            again = billing.lag().records
            self._say(f"opened again it goes on from the last commit: {number(again)} left")
            self.ok &= again == left

    def _append_on_condition(self, ledger: dq.Topic) -> None:
        self._begin("Append only if nobody else did", "ledger.append(value, expected_offset=offset)")
        offset = ledger.append(b"balance 100").offset + 1
        ledger.append(b"balance 90, by Anna", expected_offset=offset)
        self._say(f"Anna expects offset {offset}, and gets it")
        try:
            ledger.append(b"balance 80, by Ben", expected_offset=offset)
            self.ok = False
        except dq.OffsetMismatch as conflict:
            self._say(f"Ben expected the same: [yellow]{type(conflict).__name__}[/]: {conflict}")

    def _kill(self) -> None:
        self._begin("Kill a writer, and lose nothing", "kill -9")
        command = [sys.executable, "-m", "dq.cli.demo_writer", self._path, _LEDGER]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            acknowledged = 0
            for line in writer.stdout:
                acknowledged = int(line)
                if acknowledged > 1000:
                    break
            writer.kill()
            # What it still told us before it died was acknowledged as well.
            acknowledged = max([acknowledged, *(int(line) for line in writer.stdout if line.endswith(b"\n"))])
        begin = time.monotonic()
        with dq.open(self._path) as log:
            found = log.topic(_LEDGER).describe().partitions[0].next_offset
            elapsed = time.monotonic() - begin
        self._say(f"a second process appended until it was killed; offsets up to {acknowledged - 1} were acknowledged")
        self._say(f"opened again in [green]{seconds(elapsed)}[/]: offsets up to {found - 1} are there")
        self._measured.append(("recovery after kill -9", f"{number(found)} records", seconds(elapsed)))
        self.ok &= found >= acknowledged

    def _verify(self) -> None:
        self._begin("Verify", "dq verify")
        begin = time.monotonic()
        report = check(self._path)
        elapsed = time.monotonic() - begin
        total = sum(item.bytes for item in report.partitions)
        word = "[green]every CRC matches[/]" if report.ok else "[bold red]damage was found[/]"
        self._say(f"{size(total)} in {seconds(elapsed)}: {word}")
        self._measured.append(("verify", f"{size(total)} in {seconds(elapsed)}", f"{size(total / elapsed)}/s"))
        self.ok &= report.ok

    def _summary(self) -> None:
        listing = table("what", ">how much", ">how fast")
        for row in self._measured:
            listing.add_row(*row)
        out.print('\n[bold]Measured here, just now[/] [dim](values of about 100 bytes, flush="always")[/]')
        out.print(listing)


@contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    columns = (TextColumn("   {task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)
