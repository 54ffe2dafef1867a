"""The import law: data flows one way, and each library has its rooms."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "fxdask"

# Each room may import those on the lines before its own, and its own line's rooms only where named alike.
LAW = [
    ["errors"],
    ["plan"],
    ["planning"],
    ["score_plan"],
    ["kernels", "store", "threads", "progress", "evidence"],
    ["reading"],
    ["projecting"],
    ["job"],
    ["streaming"],
    ["tasks", "score_tasks"],
    ["pair_tasks"],
    ["graph"],
    ["workers"],
    ["score_graph"],
    ["resources"],
    ["inputs"],
    ["fitted"],
    ["fitting", "responding"],
    ["parameters"],
    ["network"],
    ["loading"],
    ["scoring"],
    ["datasets"],
    ["results"],
    ["pairing"],
    ["example"],
    ["experiment"],
    ["figures"],
    ["report"],
    ["reproduction"],
    ["cluster"],
    ["cli"],
    ["__main__"],
]
RANK = {room: rank for rank, line in enumerate(LAW) for room in line}
LIBRARY_ROOMS = {
    "zarr": {"store"},
    "dask": {"graph", "score_graph", "resources", "inputs", "fitting", "responding", "scoring", "network", "cluster"}
    | {"pairing", "example"},
    "distributed": {"graph", "workers", "resources", "cluster"},
    "sklearn": {"inputs", "parameters", "network", "datasets"},
    "matplotlib": {"figures"},
    "click": {"progress", "cli"},
    "threadpoolctl": {"threads"},
    "psutil": {"evidence", "store"},
    "numba": {"kernels"},
}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> list[str]:
    """Dotted names of everything a module imports, at whatever depth it does so."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            if node.module == "fxdask":
                names += [f"fxdask.{alias.name}" for alias in node.names]
            else:
                names.append(node.module)
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_room_imports_only_what_stands_before_it(path):
    here = room_of(path)
    assert here in RANK, f"{here} has no place in the law"
    for name in imports_of(path):
        library, _, rest = name.partition(".")
        if library == "fxdask":
            there = rest.partition(".")[0]
            if there in RANK:
                assert there == here or RANK[there] < RANK[here], f"{here} imports {there}"
            else:
                assert here == "cli", f"{here} imports the public name {there}"
        elif library in LIBRARY_ROOMS:
            assert here in LIBRARY_ROOMS[library], f"{here} imports {library}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_stand_at_the_top(path):
    tree = ast.parse(path.read_text())
    top = {id(node) for node in tree.body}
    inner = [n for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom)) and id(n) not in top]
    assert not inner


def test_the_law_can_fail(tmp_path):
    module = tmp_path / "module.py"
    module.write_text("def f():\n    import zarr.storage\nfrom fxdask import graph\n")
    assert set(imports_of(module)) == {"zarr.storage", "fxdask.graph"}


def test_public_names_have_docstrings_with_an_example():
    import fxdask

    for name in fxdask.__all__:
        public = getattr(fxdask, name)
        if callable(public):
            assert ">>>" in public.__doc__, name
    for name, method in vars(fxdask.FisherNetworkClassifier).items():
        if not name.startswith("_") and callable(method):
            assert ">>>" in method.__doc__, name
