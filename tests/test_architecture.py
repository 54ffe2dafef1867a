"""The import law: data flows one way, and each library is used in few places. A new file needs no edit here."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "fxdask"

# A part of the package may import itself and what is on the lines before its own.
LAW = [
    ["errors", "sizes", "progress"],
    ["kernels", "store", "planning"],
    ["tasks"],
    ["execution"],
    ["workflows"],
    ["reporting", "estimators", "experiment", "cli"],  # in this order, each what is before it
]
IN_ORDER = LAW[-1]
# Where a library may be imported: at these parts, from this part on, or in one more file.
LIBRARY_PARTS = {
    "zarr": {"store"},
    "fsspec": {"store"},
    "google_crc32c": {"store"},
    "pyarrow": {"store"},
    "pandas": {"estimators"},
    "dask": {"execution", "workflows", "estimators", "experiment"},
    "distributed": {"execution"},
    "sklearn": {"estimators", "experiment", "workflows/data.py"},
    "matplotlib": {"reporting", "experiment"},
    "click": {"progress", "cli"},
    "threadpoolctl": {"tasks"},
    "psutil": {"tasks", "store"},
    "numba": {"kernels"},
}
# Public names of these modules are exported elsewhere; the modules themselves may change in any release.
PRIVATE_MODULES = {"zarr.core", "numpy.core", "distributed.core"}
HEAVY = {"numba", "matplotlib", "pyarrow"}
FREE = {"__init__", "__main__"}
"""The package's own face: it imports what it exports."""

MODULES = sorted(PACKAGE.rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def rank_of(part: str) -> tuple[int, int]:
    for rank, line in enumerate(LAW):
        if part in line:
            return rank, IN_ORDER.index(part) if line is IN_ORDER else 0
    raise AssertionError(f"{part} is not in the law")


def imports_of(tree: ast.AST) -> list[str]:
    """Dotted names of everything that a module imports, at whatever depth, by statement or by import_module."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and "import_module" in (vars(node.func).get("id"), vars(node.func).get("attr")):
            names += [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
    return names


def check_law(path: Path, names: Iterable[str]) -> None:
    """Refuse imports of what is above a module, and of a library that belongs elsewhere."""
    here, inside = part_of(path), str(path.relative_to(PACKAGE))
    for name in names:
        library, _, rest = name.partition(".")
        if library == "fxdask":
            there = rest.partition(".")[0]
            if there in {part for line in LAW for part in line}:
                assert there == here or rank_of(there) < rank_of(here), f"{inside} imports {there}"
            else:
                assert here == "cli", f"{inside} imports the public name {there}"
        elif library in LIBRARY_PARTS:
            assert LIBRARY_PARTS[library] & {here, inside}, f"{inside} imports {library}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_what_is_below_it(path):
    if part_of(path) in FREE:
        return
    rank_of(part_of(path))
    check_law(path, imports_of(tree_of(path)))


def for_type_checkers(statement: ast.stmt) -> list[ast.stmt]:
    """The statements that only type checkers see."""
    return statement.body if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING" else []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_are_at_the_top(path):
    """Only heavy libraries may be imported where they are needed."""
    tree = tree_of(path)
    top = {id(node) for statement in tree.body for node in (statement, *for_type_checkers(statement))}
    inner = [n for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom)) and id(n) not in top]
    assert {name.partition(".")[0] for name in imports_of(ast.Module(inner, []))} <= HEAVY


def is_private(name: str) -> bool:
    """Whether a dotted name leads to a private module of a library, or to a private name in it."""
    parts = name.split(".")
    if parts[0] in {"fxdask", "__future__"}:
        return False
    return any(part.startswith("_") for part in parts) or any(
        name == module or name.startswith(f"{module}.") for module in PRIVATE_MODULES
    )


def test_no_module_imports_private_modules_of_libraries():
    private = {
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in MODULES
        for name in imports_of(tree_of(path))
        if is_private(name)
    }
    assert private == set()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("zarr.core", True),
        ("zarr.core.sync.sync", True),
        ("sklearn.utils._tags.Tags", True),
        ("numpy._core", True),
        ("zarr.buffer.default_buffer_prototype", False),
        ("fsspec.core.url_to_fs", False),
        ("__future__.annotations", False),
    ],
)
def test_private_modules_of_libraries_are_recognised(name, expected):
    assert is_private(name) == expected


def graph_of(modules: dict[str, ast.AST]) -> dict[str, set[str]]:
    """By dotted name of a module, the modules that it imports."""
    return {
        name: {
            found
            for imported in imports_of(tree)
            for found in (imported, imported.rpartition(".")[0])
            if found in modules and found != name
        }
        for name, tree in modules.items()
    }


def cycle_in(graph: dict[str, set[str]]) -> list[str]:
    """The names of one cycle, or nothing."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return path[path.index(name) :]
        if name in done:
            return []
        for below in sorted(graph[name]):
            found = visit(below, [*path, name])
            if found:
                return found
        done.add(name)
        return []

    return next(filter(None, (visit(name, []) for name in sorted(graph))), [])


def package_modules() -> dict[str, ast.AST]:
    names = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in MODULES}
    return {
        name.removesuffix(".__init__"): tree_of(path) for path, name in names.items() if path != PACKAGE / "__init__.py"
    }


def test_there_are_no_cycles():
    assert cycle_in(graph_of(package_modules())) == []


def declared_libraries() -> set[str]:
    """Import names of the package's dependencies and of its extra for tables: PyPI's names, but for dashes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["parquet"]]
    names = {re.match(r"[\w.-]+", line)[0].lower() for line in lines}
    renamed = {"scikit-learn": "sklearn"}
    return {renamed.get(name, name.replace("-", "_")) for name in names}


def test_every_library_that_is_imported_is_declared():
    used = {name.partition(".")[0] for path in MODULES for name in imports_of(tree_of(path))}
    assert used - set(sys.stdlib_module_names) - {"fxdask"} == declared_libraries()


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("kernels/new.py", "import zarr"),
        ("tasks/new.py", "def f():\n    import pyarrow.parquet"),
        ("tasks/new.py", "import dask.dataframe as dd"),
        ("kernels/new.py", "from fxdask.store.paths import store_url"),
        ("store/new.py", "from fxdask.planning.fit_plan import FitPlan"),
        ("tasks/new.py", "import dask.array as da"),
        ("tasks/new.py", "from fxdask import load"),
        ("workflows/new.py", "from sklearn.base import BaseEstimator"),
        ("estimators/new.py", "from fxdask.experiment.results import Results"),
        ("kernels/new.py", "def f():\n    from importlib import import_module\n    import_module('zarr')"),
        ("kernels/new.py", "import importlib\n\nimportlib.import_module('zarr')"),
    ],
)
def test_the_law_refuses(file, source):
    with pytest.raises(AssertionError):
        check_law(PACKAGE / file, imports_of(ast.parse(source)))


def test_a_part_that_is_not_in_the_law_is_refused():
    with pytest.raises(AssertionError, match="utils is not in the law"):
        rank_of(part_of(PACKAGE / "utils.py"))


def test_a_cycle_is_found():
    sources = {"a": "import b", "b": "from c import thing", "c": "import a", "d": "import a"}
    modules = {name: ast.parse(source) for name, source in sources.items()}
    assert set(cycle_in(graph_of(modules))) == {"a", "b", "c"}


def test_public_names_are_imported_on_first_use_from_where_type_checkers_see_them():
    import fxdask

    (checked,) = filter(None, map(for_type_checkers, tree_of(PACKAGE / "__init__.py").body))
    seen = {alias.name: node.module for node in checked for alias in node.names}
    assert seen == fxdask._MODULES
    assert {*seen, "MemoryPlanError", "__version__"} == set(fxdask.__all__) <= set(dir(fxdask))
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = fxdask.nonsense


def test_a_worker_loads_only_the_libraries_that_tasks_need():
    """A worker imports the functions of its tasks; scikit-learn alone would take it more than a second."""
    tasks = [f"fxdask.tasks.{path.stem}" for path in (PACKAGE / "tasks").glob("[a-z]*.py")]
    program = f"import sys, {', '.join(tasks)}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"sklearn", "dask", "distributed", "matplotlib", "pandas", "scipy.stats", "numba", "pyarrow"} & set(
        loaded
    )


def test_public_names_have_docstrings_with_an_example():
    import fxdask

    for name in fxdask.__all__:
        public = getattr(fxdask, name)
        if callable(public) and not (isinstance(public, type) and issubclass(public, Exception)):
            assert ">>>" in public.__doc__, name
    for name, method in vars(fxdask.FisherNetworkClassifier).items():
        if not name.startswith("_") and callable(method):
            assert ">>>" in method.__doc__, name
