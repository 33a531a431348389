"""How a command ends when something goes wrong: one line for whoever typed it, and an exit code for scripts.

    0    it worked
    1    it did not, and the line on stderr says why; of `dq verify`: damage was found
    2    it was called in a wrong way; of `dq verify`: it could not look
    130  Ctrl-C
    141  whoever read the output went away, as `head` does

DQ_DEBUG=1 shows where an error came from.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from typer.core import TyperGroup

import dq
from dq.cli.output import err

FAILED, MISUSED, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141


class OneLineErrors(TyperGroup):
    """The commands, with every error that DQ raises on purpose told in one line."""

    def invoke(self, ctx: Any) -> Any:
        _show_warnings()
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except KeyboardInterrupt:
            raise SystemExit(INTERRUPTED) from None
        except BrokenPipeError:
            # What is still in the buffer has nowhere to go: not even the flush at exit may try.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(BROKEN_PIPE) from None
        except (dq.DQError, OSError) as error:
            if os.environ.get("DQ_DEBUG", "") not in ("", "0"):
                raise
            show_error(error)
            raise SystemExit(FAILED) from None


def show_error(error: Exception) -> None:
    hint = hint_for(error)
    message = " ".join(str(error).split())
    err.print("[bold red]error:[/]", _plain(message) + (f" [dim]({_plain(hint)})[/]" if hint else ""), soft_wrap=True)


def hint_for(error: Exception) -> str | None:
    """What to do next, where that helps."""
    if isinstance(error, dq.NotADataDirectory):
        return "choose one with --data DIR or DQ_DATA; `dq topics create NAME` makes one"
    if isinstance(error, dq.UnknownTopic):
        return f"`dq topics` lists them, `dq topics create {error.name}` makes it"
    if isinstance(error, dq.TopicExists):
        return f"`dq topics describe {error.name}` shows it"
    if isinstance(error, dq.Corruption):
        onward = "" if error.resume_offset is None else f", offset {error.resume_offset} is the next that can be read"
        return f"`dq verify` shows all damage, `dq repair` passes over it{onward}"
    return None


def _plain(text: str) -> str:
    """Without a meaning for rich."""
    return text.replace("[", r"\[")


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"{record.levelname.lower()}: {record.getMessage()}"


def _show_warnings() -> None:
    """What the engine has to say goes to stderr, one line each."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter())
    logging.getLogger("dq").addHandler(handler)
