"""Files that say what to run and cannot be meant: TOML that is none, specs, grids and searches."""

from pathlib import Path

import pytest

from tests.badinput.conftest import Refused

HEAD = 'name = "n"\nworkers = 2\n'
SEARCH = f"{HEAD}[search]\n"

ROWS: list[tuple[str, ...]] = [
    # the command, the file, and what the line must name
    ("run", "epochs", "FILE = 'file.toml'", "cannot be read"),
    ("run", f"[{'a.' * 3000}b]", "no such field"),
    ("run", "[model_options]\ndropout = {a = 1}", "model_options.dropout = ", "a number, text"),
    ("run", f"[model_options]\nwidth = 0x{'f' * 5000}", "model_options.width = ", "many digits"),
    ("run", f"shards = 0x{'f' * 5000}", "shards = (a number of too many digits)", "at least 1"),
    ("run", f"learning_rate = 1{'0' * 400}", "learning_rate = 1000", "must be a number"),
    ("grid", HEAD + f"trials = 0x{'f' * 5000}", "trials = (a number of too many digits)"),
    ("run", "[[experiment]]\nname = 'a'", "experiment = ", "`downpour grid`"),
    ("run", SEARCH, "search = ", "`downpour tune`"),
    ("run", "epochs = [1, 2]", "epochs = [1, 2]", "`downpour grid`"),
    ("run", HEAD, "workers = 2", "`--workers`"),
    ("submit", HEAD, "workers = 2", "its manager"),
    ("run", "policy = 'handoff'\n[policy_options]\nslow = 2", "policy_options.slow = 2", "it has:"),
    ("run", "keep_best = 'bleu'", "keep_best = 'bleu'", "must be accuracy or loss"),
    ("run", "keep_best = 'loss'\nevaluate_every = 0", "keep_best = 'loss'", "needs evaluations"),
    ("grid", 'name = "a b"\nworkers = 1', "name = 'a b'"),
    ("grid", 'name = ["a", "b"]\nworkers = 1', "name = ['a', 'b']"),
    ("grid", 'name = "n"\nworkers = [1, 1]', "workers = [1, 1]", "names a value twice"),
    ("grid", 'name = "n"\nworkers = []', "workers = []", "empty list"),
    ("grid", HEAD + "model_options = 3", "model_options = 3", "a table"),
    ("grid", HEAD + "[experiment]\nname = 'x'", "experiment = ", "must be tables"),
    ("tune", HEAD + "epochs = [1, 2]", "epochs = [1, 2]", "`downpour grid`"),
    ("tune", SEARCH + "'model_options.' = [1]", "search.model_options. = [1]", "no such field"),
]  # fmt: skip

# What a network takes is known where torch is: these start a manager.
MODELS: list[tuple[str, ...]] = [
    ("run", "model = 'mlp'\n[model_options]\nhiden = 3", "model_options", "hiden"),
    ("run", "model = 'frob'", "model = 'frob'"),
    ("run", "model = 'frob:make'", "model = 'frob:make'", "DOWNPOUR_ALLOW"),
    ("run", "model = 'mlp'\n[model_options]\nhidden = -1", "model_options"),
    ("run", "shards = 5000", "shards"),
    ("run", "batches = 'balanced'\nbatch_size = 3", "batches = 'balanced'"),
    ("run", "loss = 'binary_cross_entropy'", "loss = 'binary_cross_entropy'"),
    ("run", "train_limit = 1", "train_limit = 1", "have class"),
    ("run", "image_size = 1", "model"),
]


@pytest.mark.slow
@pytest.mark.parametrize("row", MODELS, ids=lambda row: row[1])
def test_a_manager_refuses_values_that_only_it_can_check(
    bad: Refused, row: tuple[str, ...]
) -> None:
    """One line all the same, and status 2."""
    command, text, *named = row
    Path("file.toml").write_text(text + "\n", "utf-8")
    bad([command, "file.toml", "--workers", "1", "--shared", "shared"], *named)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]} {row[1][-40:]!r}")
def test_a_file_is_refused(bad: Refused, row: tuple[str, ...]) -> None:
    """One line, which names the field, its value and what is accepted; nothing is begun."""
    command, text, *named = row
    Path("file.toml").write_text(text, "utf-8")
    bad([command, "file.toml"], *named)
    assert not Path("results").exists()
