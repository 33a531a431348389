"""The type of a rule. What rules have to be like is said in the package's text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dq.engine.raft.changes import Change

if TYPE_CHECKING:
    from dq.engine.raft.image import Image

Rules = Mapping[type[Change], Callable[["Image", Any, int], "Image"]]
