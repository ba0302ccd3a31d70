"""A stage that is not alone: others use its directory, and files change while no manager is there.

Embedded runs come and go beside the manager. Folders that a manager of another directory has
written are copied in, while it runs and between its death and the next one's start; the dataset's
source and the experiment's spec are changed then. There are more workers than an experiment has
retries. Its model must be that of an undisturbed run, theirs as well, and what was copied in
must lie there as it was.
"""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.chaos.forked import QUIET, model_of_run
from tests.chaos.stage import COMMAND, PATIENCE_SECONDS, Stage
from tests.waiting import until

WORKERS = 5
RETRIES = 1
_FLAGS = "--shards", "7", "--epochs", "40", "--meet", "1", "--seed", "3"
_BESIDE = "--shards", "2", "--epochs", "3", "--meet", "1", "--seed", "5", "--workers", "1"
_FOREIGN_FLAGS = "--shards", "2", "--epochs", "5000", "--meet", "1", "--seed", "1"
_FOREIGN_MODELS = 3
_TEST_EXAMPLES = 200


@dataclass(frozen=True, slots=True)
class Expected:
    """What comes of the stage's experiment and of a run beside it, and a folder from elsewhere."""

    model: bytes
    beside: bytes
    foreign: Path


def expected_in(folder: Path) -> Expected:
    """Find out what is to be expected, and make another cluster's folder."""
    data = _flags(write_examples(folder / "digits.npz"))
    return Expected(
        model=model_of_run(folder / "alone", *data, "--workers", "2"),
        beside=model_of_run(folder / "beside", *_BESIDE),
        foreign=_foreign(folder / "elsewhere"),
    )


def _flags(data: Path) -> list[str]:
    return ["--dataset", "npz", "--data-path", str(data), "--model", "mlp", *_FLAGS]


def write_examples(path: Path, *, inverted: bool = False) -> Path:
    """Write the digits as a file of arrays, or their negatives: of the same shapes and labels."""
    from sklearn.datasets import load_digits  # imports for a second

    digits = load_digits()
    images = (digits.images * 15).astype(np.uint8)
    images = images if not inverted else 240 - images
    train, test = slice(_TEST_EXAMPLES, None), slice(_TEST_EXAMPLES)
    labels = digits.target.astype(np.int64)
    np.savez(path, x=images[train], y=labels[train], x_test=images[test], y_test=labels[test])
    return path


def _foreign(shared: Path) -> Path:
    """Return the folder of an experiment that another directory's manager has left unfinished."""
    shared.mkdir(parents=True)
    with closing(Stage(shared, 0, workers=1)) as stage:
        with stage.submit(*_FOREIGN_FLAGS) as client:  # which waits for it, and closes its pipes
            client.kill()
        [folder] = (shared / "experiments").iterdir()
        until(lambda: max((*_versions(folder), 0)) >= _FOREIGN_MODELS, PATIENCE_SECONDS)
    return folder


def _versions(folder: Path) -> Iterator[int]:
    for path in folder.glob("model-*"):
        yield int(path.name.split("-")[1])


class Company(Stage):
    """More workers than retries, and company.

    Args:
        shared: the shared directory; the dataset's source lies beside it.
        seed: decides what happens, and when.
        foreign: the folder of another cluster's experiment.
    """

    happens = (
        *("kill_manager", "run_beside", "copy_in", "copy_in_meanwhile"),
        *("change_source_meanwhile", "damage_spec_meanwhile"),
    )

    def __init__(self, shared: Path, seed: int, foreign: Path) -> None:
        self._source = write_examples(shared.parent / f"{shared.name}.npz")
        retries = "--retries", str(RETRIES)
        super().__init__(shared, seed, WORKERS, [*_flags(self._source), *retries])
        self._foreign = foreign
        self._copies: dict[Path, str] = {}
        self._beside: list[subprocess.Popen[bytes]] = []
        self._mine = ""

    def begin(self) -> subprocess.Popen[str]:
        client = super().begin()
        [folder] = (self.shared / "experiments").iterdir()
        self._mine = folder.name
        return client

    def run_beside(self) -> None:
        """Somebody runs an experiment of their own in this directory."""
        self._note("run_beside", "run")
        words = [*COMMAND, "run", "--shared", str(self.shared), *_BESIDE]
        log = (self.shared.parent / f"{self.shared.name}-beside.log").open("ab")
        with log:
            self._beside.append(
                subprocess.Popen(words, stdout=log, stderr=log, env={**os.environ, **QUIET})
            )

    def copy_in(self) -> None:
        """Somebody copies an experiment's folder in, of another cluster or as a backup of ours."""
        if self.random.random() < 0.5:
            origin, name = self._foreign, self._foreign.name
        else:
            origin, name = self.shared / "experiments" / self._mine, f"{self._mine}-backup"
        copy = self.shared / "experiments" / f"{name}-{len(self._copies)}"
        self._note("copy_in", copy.name)
        with suppress(shutil.Error, OSError):  # what is removed while it is copied
            shutil.copytree(origin, copy)
        self._copies[copy] = _digest(copy)

    def copy_in_meanwhile(self) -> None:
        """The same, while there is no manager."""
        with self._no_manager():
            self.copy_in()

    def change_source_meanwhile(self) -> None:
        """The dataset's source becomes another one while there is no manager.

        Not before an experiment is prepared: its examples are those that the source has then.
        """
        with self._no_manager():
            folder = self.shared / "experiments" / self._mine
            lines = (path.read_text() for path in folder.glob("journal-*.jsonl"))
            if any('"kind":"prepared"' in line for line in lines):
                self._note("change_source", self._source.name)
                write_examples(self._source, inverted=True)

    def damage_spec_meanwhile(self) -> None:
        """The experiment's spec is edited, cut short or lost while there is no manager."""
        with self._no_manager():
            path = self.shared / "experiments" / self._mine / "spec.toml"
            how = self.random.choice(["edited", "cut", "lost"])
            self._note(f"damage_spec: {how}", path.name)
            if how == "lost":
                path.unlink(missing_ok=True)
                return
            with suppress(FileNotFoundError):
                text = path.read_text()
                edited = text.replace("seed = 3", "seed = 4")
                path.write_text(edited if how == "edited" else text[: len(text) // 2])

    def wrong(self, expected: Expected) -> str:
        """Say what is not as it should be, now that all has ended."""
        for one in self._beside:
            if status := one.wait(PATIENCE_SECONDS):
                return f"a run beside ended with {status}"
        models = {
            path.parent.name: path.read_bytes()
            for path in self.shared.glob("experiments/*/model.safetensors")
            if path.parent not in self._copies
        }
        if models.pop(self._mine, b"") != expected.model:
            return "another model"
        if [*models.values()] != [expected.beside] * len(self._beside):
            return f"runs beside have {len(models)} models, or others than expected"
        changed = [copy.name for copy, was in self._copies.items() if _digest(copy) != was]
        return f"copies have been changed: {changed}" if changed else ""

    def close(self) -> None:
        for one in self._beside:
            one.kill()
            one.wait()
        super().close()

    @contextmanager
    def _no_manager(self) -> Iterator[None]:
        self._note("kill_manager", "manager")
        self.manager.kill()
        yield
        self.manager = self._manager(self._told.rpartition(":")[2])


def _digest(folder: Path) -> str:
    """Return what tells whether anything in a folder has changed."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        digest.update(os.fsencode(path.name))
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()
