"""`./dev` and `.ci/run` are what people and machines call. Cheap checks only: nothing is installed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
COMMANDS = ["up", "test", "soak", "bench", "lint", "format", "help"]


def run(*arguments: str, cwd: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, cwd=cwd, capture_output=True, text=True, timeout=30)


def commands_in(text: str) -> list[str]:
    """The first word of each indented line."""
    return [line.split()[0] for line in text.splitlines() if line.startswith("  ")]


def test_dev_is_valid_posix_shell() -> None:
    result = run("sh", "-n", "dev")
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("arguments", [["help"], ["--help"], []])
def test_help_lists_every_command_and_is_the_default(arguments: list[str]) -> None:
    result = run("./dev", *arguments)
    assert (result.returncode, result.stderr) == (0, "")
    assert commands_in(result.stdout) == COMMANDS


def test_dev_can_be_called_from_another_folder(tmp_path: Path) -> None:
    result = run(str(REPOSITORY / "dev"), "help", cwd=tmp_path)
    assert result.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_command_is_refused_by_name() -> None:
    result = run("./dev", "tset")
    assert result.returncode != 0
    assert "'tset'" in result.stderr
    assert result.stdout == ""


def test_ci_runs_lint_and_tests_and_stops_at_the_first_failure() -> None:
    script = REPOSITORY / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert os.access(REPOSITORY / "dev", os.X_OK)
    assert run("bash", "-n", str(script)).returncode == 0
    lines = script.read_text().splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -eu" in lines
    assert [line for line in lines if line.startswith("./dev")] == ["./dev lint", "./dev test"]
