"""Prints the test files that a change can reach, for `CHANGED=yes` of the Makefile's tests.

A change is what differs from the merge base with `origin/main`, or from the last commit's parent
where that is the checkout itself, and what is not committed. It reaches a test that imports a
changed module, directly or through others; imports inside functions count. A changed file reaches
the tests of its folder, too, because families import their members by name, and pytest imports each
`conftest.py`. One that is not Python reaches the tests that mention its name. A change to how tests
are run reaches all of them. But a test may start processes that run other modules than it imports,
so `--slow` adds a quarter of all slow tests. If a change reaches more than a quarter, that one is
all that `--slow` prints, because all slow tests take most of an hour. The commit's hash chooses it,
so in time merges run all. Who makes such a change runs `make test-slow` before.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
from collections.abc import Iterator, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOPS = "src", "tests", "scripts", "benchmarks", "release"
EVERYWHERE = {"pyproject.toml", "setup.py", "Makefile", "install.py", "reached.py"}
SHARES = 4


class Source:
    """One Python file and the modules of the project that it imports."""

    def __init__(self, path: Path) -> None:
        self.path = path
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts[1:] if parts[0] == "src" else parts
        self.module = ".".join(part for part in parts if part != "__init__")
        self.text = path.read_text(encoding="utf-8")

    @cached_property
    def imports(self) -> set[str]:
        """The dotted names that the file imports; `from a import b` is named "a.b"."""
        names: set[str] = set()
        for node in ast.walk(ast.parse(self.text)):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                names.update(f"{node.module}.{alias.name}" for alias in node.names)
        return names


def changed() -> set[Path]:
    """Return the files that differ from where this branch began."""
    base = _git("merge-base", "HEAD", "origin/main")
    if base in {"", _git("rev-parse", "HEAD")}:
        base = "HEAD~1"
    names = _git("diff", "--name-only", base).splitlines()
    names += _git("ls-files", "--others", "--exclude-standard").splitlines()
    return {ROOT / name for name in names}


def reached(files: set[Path], tests: Sequence[Source], sources: Sequence[Source]) -> set[Path]:
    """Return the tests that the files can reach."""
    if any(file.name in EVERYWHERE for file in files):
        return {test.path for test in tests}
    by_module = {source.module: source for source in sources}
    return {
        test.path
        for test in tests
        if any(source.path in files for source in _closure(test, by_module))
        or any(_concerns(file, test) for file in files)
    }


def _closure(test: Source, by_module: dict[str, Source]) -> Iterator[Source]:
    seen = {test.module}
    ahead = [test]
    while ahead:
        source = ahead.pop()
        yield source
        for name in source.imports:
            for module in _modules(name, by_module):
                if module not in seen:
                    seen.add(module)
                    ahead.append(by_module[module])


def _modules(name: str, by_module: dict[str, Source]) -> list[str]:
    """Return the module that has a name, and the packages above it, whose `__init__` runs.

    That of the package itself imports what it offers only where it is asked, so it counts only
    where a test imports from it.
    """
    parts = name.split(".")
    names = (".".join(parts[:depth]) for depth in range(len(parts), 0, -1))
    found = [module for module in names if module in by_module]
    return found[:1] + [module for module in found[1:] if "." in module]


def _concerns(file: Path, test: Source) -> bool:
    if file.name == "conftest.py":
        return file.parent in test.path.parents
    parts = [part for part in file.relative_to(ROOT).parts[:-1] if part not in {"src", "downpour"}]
    folders = [ROOT.joinpath("tests", *parts[:depth]) for depth in range(len(parts), 0, -1)]
    folder = next((folder for folder in folders if folder.is_dir()), None)
    return folder in test.path.parents or (file.suffix != ".py" and file.name in test.text)


def share(tests: set[Path], commit: str) -> set[Path]:
    """Return the quarter of the tests that a commit runs, whatever it changed."""

    def number(text: str) -> int:
        return int(sha256(text.encode()).hexdigest(), 16)

    turn = number(commit)
    names = {path.relative_to(ROOT).as_posix(): path for path in tests}
    return {path for name, path in names.items() if (number(name) - turn) % SHARES == 0}


def _git(*words: str) -> str:
    command = ["git", *words]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return ran.stdout.strip()


def main() -> None:
    """Print the files, for the Makefile."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slow", action="store_true", help="slow tests; a quarter in any case")
    slow = parser.parse_args().slow
    found = [path for top in TOPS for path in sorted((ROOT / top).rglob("*.py"))]
    sources = [Source(path) for path in found if "generated" not in path.parts]
    tests = [source for source in sources if source.path.name.startswith("test_")]
    if slow:
        tests = [test for test in tests if "mark.slow" in test.text]
    chosen = reached(changed(), tests, sources)
    if slow and len(chosen) > len(tests) / SHARES:
        chosen = set()
    if slow:
        chosen |= share({test.path for test in tests}, _git("rev-parse", "HEAD"))
    print(*sorted(path.relative_to(ROOT).as_posix() for path in chosen), sep="\n")


if __name__ == "__main__":
    main()
