"""What may be a name. Names become parts of paths, so nothing else may."""

from __future__ import annotations

import re

from dq.engine.errors import InvalidName

LONGEST = 200
_ALLOWED = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)


def check_name(name: object, what: str = "a name") -> str:
    """Returns the name; raises InvalidName, saying what is allowed."""
    if not isinstance(name, str):
        raise InvalidName(name, f"{what} is a str, not {type(name).__name__}")
    if not name:
        raise InvalidName(name, f"{what} cannot be empty")
    if len(name) > LONGEST:
        raise InvalidName(name[:20] + "...", f"{what} has at most {LONGEST} characters, not {len(name)}")
    if not _ALLOWED.fullmatch(name):
        raise InvalidName(name, f"{what} has only letters, digits, '.', '_' and '-' (A-Z a-z 0-9 . _ -)")
    if name in (".", ".."):
        raise InvalidName(name, f"{what} cannot be '.' or '..'")
    return name


def check_user_name(name: object, what: str = "a name") -> str:
    """As check_name, and not one of those that DQ keeps for itself."""
    checked = check_name(name, what)
    if checked.startswith("__"):
        raise InvalidName(name, "names that begin with '__' are reserved for DQ itself")
    return checked
