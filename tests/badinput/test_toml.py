"""Files that say what to run and cannot be meant: TOML that is none, specs, grids and searches."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.badinput.conftest import Refused

HEAD = 'name = "n"\nworkers = 2\n'
SEARCH = f"{HEAD}[search]\n"

ROWS: list[tuple[str, ...]] = [
    # the command, the file, and what the line must name
    ("run", "epochs", "FILE = 'file.toml'", "cannot be read"),
    ("run", "epochs = 1\nepochs = 2", "FILE = 'file.toml'", "cannot be read"),
    ("run", f"seed = {'9' * 5000}", "FILE = 'file.toml'", "cannot be read"),
    ("run", f"betas = {'[' * 5000}", "FILE = 'file.toml'", "cannot be read"),
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
    ("grid", "", "name = None", "letters, digits"),
    ("grid", 'name = "a b"\nworkers = 1', "name = 'a b'"),
    ("grid", 'name = ["a", "b"]\nworkers = 1', "name = ['a', 'b']"),
    ("grid", 'name = "n"', "workers = None", "is required, unless shards is given"),
    ("grid", 'name = "n"\nworkers = 0', "workers = 0", "from 1 to"),
    ("grid", 'name = "n"\nworkers = [1, 1]', "workers = [1, 1]", "names a value twice"),
    ("grid", 'name = "n"\nworkers = []', "workers = []", "empty list"),
    ("grid", HEAD + "trials = 0", "trials = 0", "from 1 to"),
    ("grid", HEAD + "trial = 3", "trial = 3", "did you mean trials?"),
    ("grid", HEAD + "epochs = [1, 0]", "epochs = 0", "at least 1"),
    ("grid", HEAD + "epochs = [3, 3]", "epochs = [3, 3]", "twice"),
    ("grid", HEAD + "seed = [1, 2]", "seed = [1, 2]", "must be one value"),
    ("grid", HEAD + "betas = [[]]", "betas = [[]]", "empty list"),
    ("grid", HEAD + "model_options = 3", "model_options = 3", "a table"),
    ("grid", HEAD + "experiment = 3", "experiment = 3", "must be tables"),
    ("grid", HEAD + "[experiment]\nname = 'x'", "experiment = ", "must be tables"),
    ("grid", HEAD + "[[experiment]]\ntrials = 2", "trials = 2", "must come before"),
    ("grid", HEAD + "[[experiment]]\nname = 'a'\n[[experiment]]\nname = 'a'", "must differ"),
    ("grid", HEAD + "[[experiment]]\nzzz = 1", "zzz = 1", "no such field"),
    ("grid", SEARCH + "epochs = [1]", "search = ", "downpour tune"),
    ("grid", HEAD + f"seed = {2**63 - 1}\ntrials = 2", "seed = ", "a whole number"),
    ("grid", HEAD + f"epochs = {list(range(1, 400))}\nbatch_size = {list(range(1, 400))}",
     "trials = 1", "at most 100000"),
    ("grid", HEAD + "dataset = ['digits', 'frob']", "dataset = 'frob'", "known are"),
    ("tune", HEAD, "search = None", "must be a table"),
    ("tune", HEAD + "epochs = [1, 2]", "epochs = [1, 2]", "`downpour grid`"),
    ("tune", HEAD + "[[experiment]]\nname = 'x'", "experiment = ", "`downpour grid`"),
    ("tune", SEARCH, "search = {}", "must name a field"),
    ("tune", "workers = 2\n[search]\nepochs = [1, 2]", "name = None"),
    ("tune", 'name = "n"\n[search]\nepochs = [1, 2]', "workers = None", "unless shards is given"),
    ("tune", HEAD + "trials = 5\n[search]\nepochs = [1]", "trials = 5", "below [search]"),
    ("tune", SEARCH + "epochs = []", "search.epochs = []", "empty list"),
    ("tune", SEARCH + "epochs = [1, 1]", "search.epochs = [1, 1]", "twice"),
    ("tune", SEARCH + "epochs = 3", "search.epochs = 3", "a list of values"),
    ("tune", SEARCH + "epochs = { low = 1 }", "search.epochs = ", "low = "),
    ("tune", SEARCH + "epochs = { low = 3, high = 1 }", "search.epochs = ", "low must be below"),
    ("tune", SEARCH + "epochs = { low = 1, high = 3, step = 1 }", "search.epochs.step = 1"),
    ("tune", SEARCH + "learning_rate = { low = 0, high = 1, log = true }", "low = 0", "above 0"),
    ("tune", SEARCH + "learning_rate = { low = 'a', high = 1 }", "low = 'a'", "a number"),
    ("tune", SEARCH + "learning_rate = { low = 0.1, high = 1, log = 1 }", "log = 1", "true or"),
    ("tune", SEARCH + "name = ['a', 'b']", "search.name = ", "cannot be searched"),
    ("tune", SEARCH + "zzz = [1]", "zzz = [1]", "no such field"),
    ("tune", SEARCH + "'model_options.' = [1]", "search.model_options. = [1]", "no such field"),
    ("tune", SEARCH + "epochs = [1]\ntrials = 0", "search.trials = 0", "from 1 to"),
    ("tune", SEARCH + "epochs = [1]\nseed = -1", "search.seed = -1", "from 0 to"),
    ("tune", SEARCH + "epochs = [1]\npruner = 'best'", "pruner", "'best'", "median"),
    ("tune", SEARCH + "epochs = [1]\nobjective = 'bleu'", "search.objective = 'bleu'", "accuracy"),
    ("tune", SEARCH + "epochs = [1]\nobjective = 3", "search.objective = 3", "accuracy or loss"),
    ("tune", HEAD + "evaluate_every = 0\n[search]\nepochs = [1]", "evaluate_every = 0"),
    ("tune", SEARCH + "optimizer = ['sgd', 'adam']\nnesterov = [true]", "nesterov = True", "sgd"),
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
