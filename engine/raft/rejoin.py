"""How a node that may have forgotten something becomes a full member again. Pure state; `node.py` sends the messages.

Such a node may have voted in a term that it no longer knows of, and acknowledged entries that it no longer has. So
it follows without voting, standing or counting until both are made good:

- **Votes.** Every other voter has told its term since this node started. Whoever got a vote of this node knew the
  term it was for, so no vote can lie above the highest of them. In that term itself this node does not vote again.
- **Entries.** A leader that knows of the rejoining has committed an entry, the barrier, *without counting this
  node*, and the barrier has arrived here and is durable. That leader holds everything that was ever committed, an
  older one cannot commit, and what lies before the barrier is then here as well.

When every other voter has an empty log there is nothing that could have been acknowledged: that is how a new
cluster begins. It needs all its first members once. A majority that forgot is never guessed at: nobody leads until
an operator decides.
"""

from __future__ import annotations

import os
from collections.abc import Set
from typing import NamedTuple

UNKNOWN_VOTE = "?"  # this node may have voted in the term, and does not know for whom


class Cleared(NamedTuple):
    """A leader's word: everything up to this entry is committed, and this node was not needed for it."""

    nonce: bytes
    index: int  # type: ignore[assignment]  # hides tuple.index
    term: int


class Rejoin:
    def __init__(self) -> None:
        self.nonce = os.urandom(8)
        self._terms: dict[str, int] = {}
        self._empty: set[str] = set()
        self.cleared: Cleared | None = None

    def report(self, node: str, nonce: bytes, term: int, empty: bool) -> None:
        if nonce == self.nonce:
            self._terms[node] = max(term, self._terms.get(node, 0))
            self._empty.add(node) if empty else self._empty.discard(node)

    def unheard(self, others: Set[str]) -> set[str]:
        return set(others) - self._terms.keys()

    def clear(self, cleared: Cleared) -> None:
        if cleared.nonce == self.nonce:
            self.cleared = cleared

    def highest_term(self) -> int:
        return max(self._terms.values(), default=0)

    def is_done(self, others: Set[str], durable_index: int, term_at_barrier: int | None) -> bool:
        """`term_at_barrier` is the term of the entry that is stored here at the barrier's index."""
        if self.unheard(others):
            return False
        if self._empty >= set(others):
            return True
        cleared = self.cleared
        return cleared is not None and durable_index >= cleared.index and term_at_barrier == cleared.term
