"""Changes on their way into the log: which wait to be taken, which are stored and wait to be committed.

The leader takes proposals only after it has applied everything before its own term, and it alone appends. So it
knows the image that the last entry of its log will lead to, committed or not (`_ahead`), and checks each change
against exactly the state in which it will be applied: what is stored is never refused later, an event id is stored
once, and the images are kept to be used when the entries are committed.

Also a refusal, or the offset of an event that is on its way already, is answered only when an entry that was
appended after it is committed. A leader that has been replaced without knowing can say neither.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

from dq.engine.errors import DQError
from dq.engine.raft.errors import NotLeader, TooManyProposals
from dq.engine.raft.events import Event, encode_event
from dq.engine.raft.image import Image, apply_event, find_event
from dq.engine.raft.members import BARRIER, control_batch
from dq.engine.segments.batch import EncodedBatch, encode

MOST_WAITING = 100_000
_BATCH_BYTES, _BATCH_EVENTS = 512 << 10, 8192


class Appender(Protocol):
    """The leader's log."""

    @property
    def next_offset(self) -> int: ...

    def append(self, batch: EncodedBatch) -> tuple[int, int]:
        """Returns the index and the term of the new entry."""


class Proposal:
    __slots__ = ("events", "future", "offset", "refusal", "term", "values")

    def __init__(self, events: Sequence[Event] = ()) -> None:
        self.events = events  # none: a barrier, which only waits for its place in the log
        self.values = [encode_event(event) for event in events]
        self.future: Future[int] = Future()  # of the first offset; running means: it may be in the log
        self.offset: int | None = None
        self.refusal: DQError | None = None
        self.term = 0

    @property
    def event_id(self) -> bytes:
        return self.events[0].id if self.events else b""


class Proposals:
    """`put` may be called from any thread; all else belongs to the Raft thread."""

    def __init__(self) -> None:
        self._queue: deque[Proposal] = deque()
        self._stored: dict[int, list[Proposal]] = {}  # by Raft index
        self._ahead: Image | None = None
        self._made: dict[int, tuple[int, Image]] = {}  # Raft index -> term, the image after that entry

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, proposal: Proposal) -> None:
        if len(self._queue) >= MOST_WAITING:
            raise TooManyProposals(MOST_WAITING)
        self._queue.append(proposal)

    # ------------------------------------------------------------ taking

    def take(self, log: Appender, image: Image, time: int) -> None:
        """Puts all that waits into as few entries as possible. `image` is that of the committed entries."""
        ahead = self._ahead or image
        later: list[Proposal] = []
        index = term = 0
        while self._queue:
            taken, ahead = self._next_batch(log.next_offset, ahead, image, later)
            if taken:
                values = [value for proposal in taken for value in proposal.values]
                times = [event.time for proposal in taken for event in proposal.events]
                index, term = log.append(encode(values, timestamps=times))
                self._made[index] = term, ahead
                self._store(index, term, taken)
        if later:
            if not index:
                index, term = log.append(control_batch(BARRIER, time=time))
            self._store(index, term, later)
        self._ahead = ahead

    def _store(self, index: int, term: int, proposals: list[Proposal]) -> None:
        for proposal in proposals:
            proposal.term = term
        self._stored.setdefault(index, []).extend(proposals)

    def _next_batch(
        self, offset: int, ahead: Image, committed: Image, later: list[Proposal]
    ) -> tuple[list[Proposal], Image]:
        """Proposals for one entry, and the image after them; those that wait without being stored go to `later`."""
        taken: list[Proposal] = []
        start, size = offset, 0
        while self._queue and size < _BATCH_BYTES and offset - start < _BATCH_EVENTS:
            proposal = self._queue.popleft()
            if not proposal.future.set_running_or_notify_cancel():
                continue
            proposal.offset = find_event(ahead, proposal.event_id) if proposal.events else None
            if proposal.offset is not None and find_event(committed, proposal.event_id) is not None:
                proposal.future.set_result(proposal.offset)
                continue
            if proposal.events and proposal.offset is None:
                after = _applied(ahead, proposal, offset)
                if after is not None:
                    ahead = after
                    taken.append(proposal)
                    offset += len(proposal.events)
                    size += sum(map(len, proposal.values))
                    continue
            later.append(proposal)
        return taken, ahead

    # ------------------------------------------------------------ answering

    def image_after(self, index: int, term: int) -> Image | None:
        """The image that was made when the entry was appended here."""
        made_in, image = self._made.pop(index, (-1, None))
        return image if made_in == term else None

    def committed(self, index: int, term: int, next_offset: int) -> None:
        """An entry is committed and applied: answers those who wait for it, or whose entry it took the place of."""
        for proposal in self._stored.pop(index, ()):
            if proposal.term != term:
                proposal.future.set_exception(NotLeader(None))
            elif proposal.refusal is not None:
                proposal.future.set_exception(proposal.refusal)
            else:
                proposal.future.set_result(next_offset if proposal.offset is None else proposal.offset)

    def refuse(self, error: Exception) -> None:
        """Nothing that waits will be taken here. What is stored may still be committed."""
        while self._queue:
            proposal = self._queue.popleft()
            if proposal.future.set_running_or_notify_cancel():
                proposal.future.set_exception(error)

    def lost_leadership(self) -> None:
        """What becomes of the entries on their way is decided by the next leader."""
        self._ahead = None
        self._made.clear()

    def give_up(self, error: Callable[[Proposal], Exception]) -> None:
        """The node stops: nobody will know here what became of what is stored."""
        stored, self._stored = self._stored, {}
        for proposals in stored.values():
            for proposal in proposals:
                proposal.future.set_exception(error(proposal))


def _applied(image: Image, proposal: Proposal, offset: int) -> Image | None:
    """The image after all events of a proposal, or None when one of them is refused."""
    for at, event in enumerate(proposal.events, offset):
        image, proposal.refusal, _ = apply_event(image, event, at)
        if proposal.refusal is not None:
            return None
    proposal.offset = offset
    return image
