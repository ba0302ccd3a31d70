"""The house rules: wings, purity, banned modules, sizes, docstrings, tests, clean text.

Everything is read from the source with `ast`, so that imports inside functions and under
`TYPE_CHECKING` count like all others. What the wings are and what each may import is read from the
table in `docs/internals/architecture.md`. Each rule collects all that violates it; a failure
lists every place.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cached_property
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from downpour.base.errors import EXTRAS
from downpour.core.spec import Spec

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"
PACKAGE = SRC / "downpour"
LABORATORY = "downpour_lab"

PURE = {"base", "core"}
IMPURE = re.compile(
    r"(time|datetime|random|secrets|uuid|os|io|sys|pathlib|shutil|tempfile|glob|fcntl|socket|select|"
    r"subprocess|signal|threading|multiprocessing|concurrent|asyncio|queue|logging|torch|thrift)\b"
)
ENTRANCES = {"__init__", "__main__"}
NO_TORCH = PURE | {"host", "files", "network", "cli"}
# Certificates are made by one module, which `downpour certs` imports where it runs.
LAZY = {module for modules in EXTRAS.values() for module in modules} - {"cryptography"}
LAZY |= {"torchvision", "PIL"}
# What only the page's process imports.
PAGE_SERVER = {f"experiments/page_server/{name}.py" for name in ("server", "viewers")}
PICKLES = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}

SOURCES = {".py", ".js", ".css", ".html"}
SLACK_LINES, SLACK_FILES = 200, 5
"""How far a wing may be below its budget until somebody must lower the budget."""

FUNCTION_LINES_MAX = 60
FILE_LINES_MAX = 500

TEXT_FOLDERS = (
    "src",
    "tests",
    "docs",
    "examples",
    "benchmarks",
    "docker",
    "idl",
    "release",
    "scripts",
    ".ci",
    ".github",
)
TEXT_SUFFIXES = {"", ".py", ".md", ".toml", ".txt", ".sh", ".yml", ".yaml", ".thrift", ".html"}
MADE = {"__pycache__", "out"}
# Spelled so that this line does not find itself.
UNWANTED = re.compile(r"\b(?:TO[D]O|FIX[M]E)\b|(?<![\w.])/(?:work|home|Users|tmp/h)/\w")

NAMED_FILE = re.compile(r"`((?:[\w.-]+/)*[\w-]+\.(?:py|js))`")
FOREIGN_FILES = {"prepare.py"}
"""What our text names although others wrote it: nanoGPT's."""

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Source:
    """One parsed file: where it is, which layer it belongs to, and what it imports."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.relative_to(ROOT).as_posix()
        self.text = path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.text)
        parts = path.relative_to(SRC).with_suffix("").parts if SRC in path.parents else ()
        self.module = ".".join(part for part in parts if part != "__init__")
        parts = parts[1:] if parts[:1] == ("downpour",) else parts
        self.wing = parts[0] if parts else ""
        self.room = "/".join(parts[:2])

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All that the file says, walked through once for all rules."""
        return list(ast.walk(self.tree))

    @cached_property
    def imports(self) -> list[tuple[int, str]]:
        """Every import as (line, dotted name); `from a import b` is named "a.b"."""
        found = []
        for node in self.nodes:
            if isinstance(node, ast.Import):
                found += [(node.lineno, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
        return found

    def imports_at_once(self) -> Iterator[tuple[int, str]]:
        """The imports that happen when the module is imported."""
        later: set[int] = set()
        for node in self.nodes:
            checked = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            if isinstance(node, ast.stmt) and (checked or isinstance(node, FUNCTIONS)):
                later.update(range(node.lineno, (node.end_lineno or 0) + 1))
        yield from ((line, name) for line, name in self.imports if line not in later)

    @cached_property
    def calls(self) -> list[tuple[int, str]]:
        """Every call as (line, text)."""
        found = [node for node in self.nodes if isinstance(node, ast.Call)]
        return [(node.lineno, ast.unparse(node)) for node in found]

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Every function and method."""
        return (node for node in self.nodes if isinstance(node, FUNCTIONS))

    def at(self, line: int, what: str) -> str:
        return f"{self.name}:{line}: {what}"


class Code:
    """All that is read: the package, without what Thrift generates, and its tests."""

    def __init__(self) -> None:
        package = [path for path in sorted(SRC.rglob("*.py")) if "generated" not in path.parts]
        self.sources = [Source(path) for path in package]
        self.tests = [Source(path) for path in sorted((ROOT / "tests").rglob("*.py"))]
        self.modules = {source.module: source for source in self.sources}


@pytest.fixture(scope="module")
def code() -> Code:
    """Read by the process that checks it, and not whenever tests are collected."""
    return Code()


def allowed() -> dict[str, set[str]]:
    """What each wing may import: what its row of the architecture page's table names."""
    page = (ROOT / "docs" / "internals" / "architecture.md").read_text(encoding="utf-8")
    known: dict[str, set[str]] = {}
    assert f"| `{LABORATORY}/`" in page, "the laboratory has a row"
    for first, words in re.findall(r"^\| (`[^|]+) \| [^|]+ \| ([^|]+) \|$", page, re.MULTILINE):
        wings = re.findall(r"`(\w+)(?:/|\.py)`", first)
        above, _, none_of = words.partition("all above but ")
        names = set(above.split(", ")) - {"nothing"}
        if words.startswith("all above"):
            names = known.keys() - set(none_of.split(", "))
        assert not wings or names <= known.keys(), f"{first}: {words!r} is not in a row above"
        known |= dict.fromkeys(wings, names)
    return known


def budgets() -> dict[str, tuple[int, int]]:
    """The most lines and files of each wing, by its name: the table of the house's budget."""
    page = (ROOT / "docs" / "internals" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \| ([\d,]+) \| ([\d,]+) \|$", page, re.MULTILINE)
    return {wing: (_number(lines), _number(files)) for wing, lines, files in rows}


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def hold(wrong: list[str]) -> None:
    """Fail with every place that violates a rule, one a line."""
    assert not wrong, "\n" + "\n".join(wrong)


def test_wings_import_only_what_the_table_says(code: Code) -> None:
    """Lazily or not; and no wing is missing in the table."""
    may = allowed()
    assert "base" in may["core"] <= may["cli"], "the table was not understood"
    inside = [source for source in code.sources if source.wing not in ENTRANCES]
    wrong = [source.at(1, "not in the table") for source in inside if source.wing not in may]
    for source in (source for source in inside if source.wing in may):
        for line, name in source.imports:
            package, *parts = name.split(".")
            target = {"downpour": parts[:1], LABORATORY: [LABORATORY]}.get(package, [source.wing])[
                0
            ]
            if target != source.wing and target not in may[source.wing]:
                wrong.append(source.at(line, f"{source.wing} must not import {target}"))
    hold(wrong)


@pytest.mark.parametrize("unit", ["module", "room"])
def test_nothing_is_imported_in_a_circle(code: Code, unit: str) -> None:
    """Neither files nor rooms, by no import at all; a room is a folder or a file of a wing."""
    order = TopologicalSorter[str]()
    for source in (source for source in code.sources if source.wing not in ENTRANCES):
        for _, name in source.imports:
            target = next(
                (code.modules[one] for one in _prefixes(name) if one in code.modules), source
            )
            if getattr(target, unit) != getattr(source, unit):
                order.add(getattr(source, unit), getattr(target, unit))
    order.prepare()


def test_imports_are_absolute(code: Code) -> None:
    """Relative imports would slip past the table."""
    hold(
        [
            source.at(node.lineno, "relative import")
            for source in code.sources
            for node in source.nodes
            if isinstance(node, ast.ImportFrom) and node.level
        ]
    )


def test_every_package_that_is_imported_is_declared(code: Code) -> None:
    """Others bring it today; with other versions of them, the import may fail."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    always = {re.split("[>=]", one)[0].replace("-", "_") for one in project["dependencies"]}
    extras = {module for modules in EXTRAS.values() for module in modules}
    notebook = {"IPython"}  # imported only by a process that runs in one
    pillow = {"PIL"}
    known = always | extras | notebook | pillow | sys.stdlib_module_names | {"downpour", LABORATORY}
    hold(
        [
            source.at(line, name)
            for source in code.sources
            for line, name in source.imports
            if name.partition(".")[0] not in known
        ]
    )


def test_pure_layers_touch_nothing(code: Code) -> None:
    """No clock, global randomness, files, threads, logging, Thrift or torch in the pure wings."""
    impure = re.compile(r"(open|print|input)\(|(np|numpy)\.random\.(?!default_rng\(\S)[a-z]")
    wrong = []
    for source in (source for source in code.sources if source.wing in PURE):
        wrong += [source.at(n, i) for n, i in source.imports if IMPURE.match(i)]
        wrong += [source.at(n, call) for n, call in source.calls if impure.match(call)]
    hold(wrong)


def test_heavy_and_foreign_modules_stay_where_they_belong(code: Code) -> None:
    """Torch keeps out of the protocol, Thrift stays in rpc/, optional libraries come lazily."""
    wrong = []
    for source in code.sources:
        banned = {"torch"} if source.wing in NO_TORCH else set()
        banned |= {"thrift"} if source.room != "network/rpc" else set()
        wrong += [source.at(n, i) for n, i in source.imports if i.split(".")[0] in banned]
        serves = source.name.removeprefix("src/downpour/") in PAGE_SERVER
        lazy = LAZY - {"h11", "starlette", "uvicorn"} if serves else LAZY
        # The folder's first line says which extra brings it (`downpour_lab/simulated/__init__.py`).
        lazy = lazy - {"greenlet"} if "downpour_lab/simulated" in source.name else lazy
        wrong += [source.at(n, i) for n, i in source.imports_at_once() if i.split(".")[0] in lazy]
    hold(wrong)


def test_pickle_is_nowhere(code: Code) -> None:
    """Neither by its own name nor inside torch.save, torch.load or NumPy."""
    hidden = re.compile(r"torch\.(save|load)\(|.*\ballow_pickle=True", re.DOTALL)
    wrong = []
    for source in code.sources:
        wrong += [
            source.at(line, name)
            for line, name in source.imports
            if name.split(".")[0] in PICKLES or name in {"torch.save", "torch.load"}
        ]
        wrong += [source.at(line, call) for line, call in source.calls if hidden.match(call)]
    hold(wrong)


def test_files_and_functions_are_small(code: Code) -> None:
    """No file over 500 lines, no function over 60."""
    wrong = []
    for source in code.sources + code.tests:
        if (lines := source.text.count("\n")) > FILE_LINES_MAX:
            wrong.append(source.at(1, f"{lines} lines"))
        for function in source.functions():
            lines = (function.end_lineno or 0) - function.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                wrong.append(source.at(function.lineno, f"{function.name} has {lines} lines"))
    hold(wrong)


def test_the_house_only_shrinks() -> None:
    """No wing has more lines or files than its budget, and no budget is left high above a wing."""
    held: dict[str, list[int]] = {}
    for path in sorted(SRC.rglob("*")):
        if path.suffix in SOURCES and "generated" not in path.parts and ".min." not in path.name:
            package, *parts = path.relative_to(SRC).parts
            wing = parts[0] if package == "downpour" and len(parts) > 1 else package
            held.setdefault(wing, []).append(path.read_text(encoding="utf-8").count("\n"))
    most = budgets()
    assert held.keys() == most.keys(), "a row for each wing"
    wrong = []
    for wing, lines in held.items():
        has, may = (sum(lines), len(lines)), most[wing]
        if has[0] > may[0] or has[1] > may[1]:
            wrong.append(
                f"{wing} has {has[0]} lines in {has[1]} files of at most {may[0]}, {may[1]}"
            )
        elif may[0] - has[0] > SLACK_LINES or may[1] - has[1] > SLACK_FILES:
            wrong.append(f"{wing} shrank to {has[0]} lines in {has[1]} files: lower its budget")
    hold(wrong)


def test_every_module_opens_with_a_docstring(code: Code) -> None:
    """It says what the module decides and what it must never do."""
    hold([s.name for s in code.sources + code.tests if not ast.get_docstring(s.tree)])


def test_every_test_says_what_must_hold(code: Code) -> None:
    """A test without a sentence does not say what would be broken."""
    hold(
        [
            source.at(function.lineno, function.name)
            for source in code.tests
            for function in source.functions()
            if function.name.startswith("test_") and not ast.get_docstring(function)
        ]
    )


def test_no_public_class_name_stands_for_two_things(code: Code) -> None:
    """A reader who meets a class by name alone knows it; Thrift's have the names of the wire."""
    places: dict[str, list[str]] = {}
    for source in code.sources:
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(source.at(node.lineno, node.name))
    hold([place for named in places.values() if len(named) > 1 for place in named])


def test_every_module_is_tested(code: Code) -> None:
    """A test imports it, or reaches it through modules of the same wing that a test imports."""
    reached: set[str] = set()
    ahead = [name for test in code.tests for _, name in test.imports]
    families = next(s for s in code.sources if s.room == "core/families")
    ahead += re.findall(r'"(downpour[\w.]+):', families.text)  # contract tests take in all members
    ahead += re.findall(r'"(downpour_lab[\w.]+):', (ROOT / "pyproject.toml").read_text("utf-8"))
    while ahead:
        module = next((name for name in _prefixes(ahead.pop()) if name in code.modules), None)
        if module is None or module in reached:
            continue
        reached.add(module)
        wing = code.modules[module].wing
        ahead += [
            name
            for _, name in code.modules[module].imports
            if any(code.modules[p].wing == wing for p in _prefixes(name) if p in code.modules)
        ]
    hold(
        [
            source.name
            for source in code.sources
            if source.path.stem not in ENTRANCES and source.module not in reached
        ]
    )


def _prefixes(name: str) -> tuple[str, str]:
    """Return a dotted name, and what it is a part of: `from a import b` may mean `a.b` or `a`."""
    return name, name.rpartition(".")[0]


def test_every_field_of_the_spec_is_described() -> None:
    """The command line and the docs show these sentences."""
    hold([name for name, field in Spec.model_fields.items() if not field.description])


def test_the_text_is_clean() -> None:
    """Nothing names a path of the machine it was written on, and nothing is left for later."""
    paths = [path for folder in TEXT_FOLDERS for path in sorted((ROOT / folder).rglob("*"))]
    paths += [*sorted(ROOT.glob("*.md")), ROOT / "Makefile", ROOT / "pyproject.toml"]
    wrong = []
    for path in paths:
        if (
            path.suffix in TEXT_SUFFIXES
            and path.is_file()
            and not MADE & set(path.relative_to(ROOT).parts)
        ):
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if UNWANTED.search(line):
                    wrong.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    hold(wrong)


def test_every_file_that_a_page_or_a_docstring_names_is_there(code: Code) -> None:
    """Under src/downpour, src or the root; a name without a folder, or in code, may be a part."""
    house = [path for folder in TEXT_FOLDERS for path in (ROOT / folder).rglob("*.*")]
    files = [path.relative_to(ROOT) for path in house if path.suffix in {".py", ".js"}]
    parts = {"/".join(file.parts[begin:]) for file in files for begin in range(len(file.parts))}
    pages = [*ROOT.glob("docs/internals/*.md"), *ROOT.glob("docs/concepts/*.md")]
    texts = {path: path.read_text(encoding="utf-8") for path in [*pages, ROOT / "CONTRIBUTING.md"]}
    wrong = []
    for path, text in [*texts.items(), *((source.path, source.text) for source in code.sources)]:
        for name in set(NAMED_FILE.findall(text)) - FOREIGN_FILES:
            is_rooted = any((root / name).is_file() for root in (PACKAGE, SRC, ROOT))
            may_be_part = "/" not in name or path.suffix == ".py"
            if not (is_rooted or (may_be_part and name in parts)):
                wrong.append(f"{path.relative_to(ROOT)}: {name}")
    hold(wrong)
