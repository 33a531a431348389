"""Dependencies inside the engine point one way.

The layers, lowest first, are listed in LAYERS: a module may import its own layer and those below.
Imports are read from the source, wherever they stand: inside functions and under TYPE_CHECKING too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent

BASE = "dq.engine"  # the modules directly in engine/
LAYERS = [BASE, "dq.engine.segments", "dq.engine.index", "dq.engine.raft", "dq.engine.embedded"]
NOT_IN_THE_ENGINE = {"aiohttp", "pyspark", "rich", "typer"}


def module_name(root: Path, path: Path) -> str:
    """engine/segments/batch.py is imported as dq.engine.segments.batch."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(["dq", *(parts[:-1] if parts[-1] == "__init__" else parts)])


def layer_of(module: str, packages: set[str]) -> str:
    """The engine's package that a module belongs to, or BASE."""
    child = ".".join(module.split(".")[:3])
    return child if child in packages or child in LAYERS else BASE


def imported(tree: ast.AST, package: str, modules: set[str]) -> Iterator[tuple[int, str]]:
    """Each import as (line, absolute name). `package` is what relative imports start from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - (node.level - 1)]
                origin = ".".join([*above, *([origin] if origin else [])])
            for alias in node.names:
                # `from a import b` names the module a.b if there is one, else something inside a.
                name = f"{origin}.{alias.name}"
                yield node.lineno, name if name in modules or name in LAYERS else origin


def refusal(layer: str, name: str, packages: set[str]) -> str | None:
    """Why a module of `layer` may not import `name`, or None if it may."""
    if name.split(".")[0] in NOT_IN_THE_ENGINE:
        return "does not belong in the engine"
    if name.split(".")[0] != "dq":
        return None
    if name != BASE and not name.startswith(BASE + "."):
        return "is above the engine"
    if LAYERS.index(layer_of(name, packages)) > LAYERS.index(layer):
        return f"is above {layer}"
    return None


def violations(root: Path) -> list[str]:
    """Every import under root/engine that points the wrong way, and every package that has no layer."""
    paths = {module_name(root, path): path for path in sorted((root / "engine").rglob("*.py"))}
    modules = set(paths)
    folders = [path.relative_to(root).parent.parts for path in paths.values()]
    packages = {".".join(["dq", *folder[:2]]) for folder in folders if len(folder) > 1}
    unknown = {layer_of(name, packages) for name in modules} - set(LAYERS)
    found = [f"{package} has no place in LAYERS" for package in sorted(unknown)]
    for module, path in paths.items():
        layer = layer_of(module, packages)
        if layer in unknown:
            continue
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        for line, name in imported(ast.parse(path.read_bytes()), package, modules):
            if layer_of(name, packages) in unknown:
                continue
            if reason := refusal(layer, name, packages):
                found.append(f"{path.relative_to(root).as_posix()}:{line}: {name} {reason}")
    return found


def test_dependencies_point_one_way() -> None:
    assert (REPOSITORY / "engine" / "segments").is_dir()
    assert violations(REPOSITORY) == []


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """An engine with one empty module in each layer."""
    for layer in LAYERS:
        folder = tmp_path.joinpath(*layer.split(".")[1:])
        folder.mkdir()
        (folder / "__init__.py").touch()
        (folder / "noun.py").touch()
    return tmp_path


@pytest.mark.parametrize(
    "file, source, culprit",
    [
        ("segments/a.py", "import dq.engine.index.noun", "dq.engine.index.noun"),
        ("segments/a.py", "from dq.engine.raft.noun import Thing", "dq.engine.raft.noun"),
        ("segments/a.py", "from dq.engine import embedded", "dq.engine.embedded"),
        ("segments/a.py", "from .. import index", "dq.engine.index"),
        ("segments/a.py", "from ..index import noun", "dq.engine.index.noun"),
        ("segments/__init__.py", "from ..index.noun import Thing", "dq.engine.index.noun"),
        ("segments/a.py", "from ...cli import main", "dq.cli"),
        ("segments/a.py", "import dq", "dq"),
        ("index/a.py", "from dq.engine.raft import noun", "dq.engine.raft.noun"),
        ("index/a.py", "import os, dq.cli.main", "dq.cli.main"),
        ("raft/a.py", "from dq.engine.embedded import Log", "dq.engine.embedded"),
        ("embedded/a.py", "from dq.cli import main", "dq.cli"),
        ("embedded/a.py", "from dq import open", "dq"),
        ("a.py", "from .segments import noun", "dq.engine.segments.noun"),
        ("__init__.py", "from .embedded import Log", "dq.engine.embedded"),
        ("a.py", "import rich.console", "rich.console"),
        ("raft/a.py", "from aiohttp import web", "aiohttp"),
        ("segments/a.py", "def scan():\n    import pyspark", "pyspark"),
        ("index/a.py", "if TYPE_CHECKING:\n    from typer import Typer", "typer"),
    ],
)
def test_an_import_that_points_the_wrong_way_is_found(tree: Path, file: str, source: str, culprit: str) -> None:
    (tree / "engine" / file).write_text(source)
    found = violations(tree)
    assert len(found) == 1
    assert found[0].startswith(f"engine/{file}:{len(source.splitlines())}: {culprit} ")


@pytest.mark.parametrize(
    "file, source",
    [
        ("segments/a.py", "from ..noun import Thing\nfrom .noun import Other\nfrom . import noun"),
        ("segments/a.py", "from dq.engine import noun\nfrom dq.engine.noun import Thing"),
        ("index/a.py", "from dq.engine.segments.noun import Thing\nimport lmdb"),
        ("raft/a.py", "from ..segments import noun\nfrom ..index import noun as other"),
        ("embedded/__init__.py", "from .noun import Thing\nfrom ..raft.noun import Other"),
        ("a.py", "from . import noun\nfrom .noun import Thing\nimport os.path, richer"),
    ],
)
def test_an_import_of_the_same_layer_or_one_below_is_allowed(tree: Path, file: str, source: str) -> None:
    (tree / "engine" / file).write_text(source)
    assert violations(tree) == []


def test_a_new_package_has_to_be_given_a_layer(tree: Path) -> None:
    (tree / "engine" / "extra").mkdir()
    (tree / "engine" / "extra" / "noun.py").touch()
    assert violations(tree) == ["dq.engine.extra has no place in LAYERS"]
