"""What a file may ask for, and what it is told when it may not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from downpour.base.errors import SpecError
from downpour.experiments.studies import Search
from downpour.experiments.studies.sampler import Choices, Pruner, Range
from tests.experiments.studies.conftest import SEARCH

PLAIN = 'name = "s"\nworkers = 2\n'
RATE = "learning_rate = { low = 0.1, high = 0.2 }\n"


def test_ranges_lists_and_options_are_read() -> None:
    """A range is whole where its field is; an option stands with or without quotes."""
    search = Search.from_toml(SEARCH)
    assert search.axes == {
        "learning_rate": Range(0.0001, 1.0, log=True, whole=False),
        "batch_size": Choices((16, 32)),
        "local_steps": Range(1, 50, log=False, whole=True),
        "model_options.dropout": Range(0.0, 0.5, log=False, whole=False),
        "model_options.width": Choices(([8], [8, 8])),
    }
    assert (search.asked, search.seed) == (12, 0)
    assert search.pruner == Pruner(name="median", startup_trials=3)


def test_a_search_is_written_as_it_is_read() -> None:
    """With every field; so what lies in the folder can itself be run."""
    for pruner in ("median", "halving", "none"):
        search = Search.from_toml(
            SEARCH.replace("median", pruner).replace(", startup_trials = 3", "")
        )
        assert Search.from_toml(search.to_toml()) == search
        assert "momentum = 0.9" in search.to_toml()
        assert "learning_rate" not in search.fields  # the spec's own is not used


@pytest.mark.parametrize("objective", ["loss", "accuracy", "max:loss"])
def test_what_is_searched_for_is_written_as_it_is_read(objective: str) -> None:
    """Accuracy, unless another is named; the direction only where the name does not say it."""
    search = Search.from_toml(PLAIN + f'[search]\n{RATE}objective = "{objective}"')
    assert str(search.goal) == objective
    assert Search.from_toml(search.to_toml()) == search
    assert str(Search.from_toml(PLAIN + f"[search]\n{RATE}").goal) == "accuracy"


def test_a_runs_values_can_be_read_from_its_spec() -> None:
    """Numbers come back exactly, options too; the spec keeps what is not searched."""
    search = Search.from_toml(SEARCH.replace("[search]", "[model_options]\ndepth = 3\n\n[search]"))
    values = {
        "learning_rate": 0.1 + 0.2,
        "batch_size": 32,
        "local_steps": 7,
        "model_options.dropout": 0.0,
        "model_options.width": [8, 8],
    }
    spec = search.run(values).spec
    assert search.values_of(spec) == values
    assert search.allows(values)
    assert spec.model_options["depth"] == 3
    assert not search.allows({**values, "batch_size": 64})
    assert not search.allows({**values, "learning_rate": 2.0})
    assert not search.allows({})


def test_any_field_that_changes_what_is_learned_may_be_searched() -> None:
    """Also texts, yes and no, tables, and numbers of shards."""
    text = (
        '[search]\nsplit = ["random", "class"]\nnesterov = [true, false]\nshards = [2, 4]\n'
        "betas = [[0.9, 0.99], [0.8, 0.99]]\nmodel_options = [{ hidden = [8] }, {}]\n"
        "epochs = { low = 1, high = 64, log = true }\n"
    )
    search = Search.from_toml('name = "s"\n' + text)
    assert len(list(search.samples())) == 2**6
    assert search.axes["epochs"] == Range(1, 64, log=True, whole=True)


def test_processes_inside_a_worker_may_be_searched() -> None:
    """Each field of the table alone, or tables as a whole, of which a run's spec has all fields."""
    alone = (
        '[search]\n"inside.processes" = { low = 2, high = 4 }\ninside.how = ["data", "hybrid"]\n'
    )
    search = Search.from_toml(PLAIN + alone)
    assert search.axes == {
        "inside.how": Choices(("data", "hybrid")),
        "inside.processes": Range(2, 4, log=False, whole=True),
    }
    whole = '[search]\ninside = [{}, { processes = 2, how = "hybrid" }]\n'
    search = Search.from_toml(PLAIN + whole)
    assert [run.spec.inside.processes for run in search.samples()] == [1, 2]
    assert Search.from_toml(search.to_toml()) == search
    for run in search.samples():
        assert search.run_of("0003", run.spec) == replace(run, number=3)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (PLAIN, "search = None: must be a table"),
        (PLAIN + "[search]", "search = {}: must name a field"),
        (PLAIN + "[search]\ntrials = 3", "search = {}: must name a field"),
        (PLAIN + "trials = 3\n[search]", "trials = 3: must come below [search]"),
        (PLAIN + "worker = 3\n[search]", "worker = 3: no such field; did you mean workers?"),
        (PLAIN + "[search]\ntrial = 3", "trial = 3: no such field; did you mean trials?"),
        (PLAIN + "[[experiment]]\n[search]", "experiment = [{}]: is for `downpour grid`"),
        (PLAIN + "[search]\nbatch_size = []", "search.batch_size = []: must not be an empty list"),
        (PLAIN + "[search]\nbatch_size = [1, 1]", "names a value twice"),
        (PLAIN + "[search]\nbatch_size = 4", "search.batch_size = 4: must be a list of values, or"),
        (PLAIN + "[search]\nbatch_size = { low = 1 }", "must be a list of values, or"),
        (PLAIN + "[search]\nbatch_size = { low = 9, high = 1 }", "low must be below high"),
        (PLAIN + '[search]\nbatch_size = { low = "a", high = 1 }', "batch_size.low = 'a': must be"),
        (PLAIN + "[search]\nbatch_size = { low = 1.5, high = 9 }", "batch_size = 1.5: must be a"),
        (PLAIN + "[search]\nbatch_size = { low = 1, high = 9, step = 2 }", "step = 2: no such set"),
        (PLAIN + "[search]\nmomentum = { low = 0, high = 0.9, log = true }", "must be above 0"),
        (PLAIN + "[search]\nmomentum = { low = 0.5, high = 0.9, log = 1 }", "must be true or fal"),
        (PLAIN + "[search]\nmomentum = { low = 0.5, high = 1.0 }", "momentum = 1.0: must be a num"),
        (PLAIN + "[search]\nmomentum = { low = nan, high = 1.0 }", "low = nan: must be a number"),
        (PLAIN + '[search]\nsplit = ["random", "odd"]', "split = 'odd': must be random, class"),
        (
            PLAIN + "[search]\nlearning = { low = 1, high = 2 }",
            "learning = {'low': 1, 'high': 2}: no such field; did",
        ),
        (PLAIN + '[search]\n"model.dropout" = [1]', "no such field; options are task_options.NAME"),
        (PLAIN + '[search]\nmodel_options = [{}]\n"model_options.a" = [1]', "as a whole"),
        (
            PLAIN + '[search]\n"inside.how" = ["fast"]',
            "inside.how = 'fast': must be data, pipeline",
        ),
        (
            PLAIN + '[search]\ninside = [{ how = "hybrid" }]',
            "how = 'hybrid': needs processes above",
        ),
        (
            PLAIN + "[search]\ninside = [2]",
            "inside = 2: must be a table (processes, how, cut) or just how",
        ),
        (PLAIN + "[search]\ninside = [{}, { processes = 1 }]", "names a value twice"),
        (PLAIN + "[search]\nworkers = [1, 2]", "search.workers = [1, 2]: cannot be searched"),
        (PLAIN + '[search]\nname = ["a"]', "cannot be searched"),
        (PLAIN + "[search]\nnesterov = [true]\nmomentum = [0.0]", "needs a momentum above 0"),
        (PLAIN + f"[search]\n{RATE}trials = 0", "search.trials = 0: must be a whole number from 1"),
        (PLAIN + f"[search]\n{RATE}seed = -1", "search.seed = -1: must be a whole number from 0"),
        (PLAIN + f'[search]\n{RATE}objective = "bleu"', "objective = 'bleu': must be accuracy"),
        (PLAIN + f"[search]\n{RATE}objective = 1", "objective = 1: must be accuracy or loss"),
        (PLAIN + f'[search]\n{RATE}pruner = "odd"', "search.pruner = 'odd': must be median"),
        (
            PLAIN + f"[search]\n{RATE}pruner = {{ factor = 3 }}",
            "factor = 3: no such setting; median",
        ),
        (PLAIN + f'[search]\n{RATE}pruner = {{ name = "halving", factor = 1 }}', "from 2 to"),
        (f'name = "s"\n[search]\n{RATE}', "workers = None: is required, unless shards is given"),
        (PLAIN + f"evaluate_every = 0\n[search]\n{RATE}", "evaluate_every = 0: must be at least 1"),
        (PLAIN + f"epoch = 3\n[search]\n{RATE}", "epoch = 3: no such field; did you mean epochs?"),
        (f"workers = 2\n[search]\n{RATE}", "name = None: must be 1 to 64 letters"),
        ("[search", "TOML = '[search': cannot be read"),
    ],
)
def test_a_mistake_is_told_in_a_line_that_names_the_field(text: str, line: str) -> None:
    """With its value, and what would be accepted."""
    with pytest.raises(SpecError) as told:
        Search.from_toml(text)
    assert line in str(told.value)
    assert "\n" not in str(told.value)


def test_which_search_goes_on_with_which() -> None:
    """More runs or workers change nothing; values, seed and pruner do."""
    search = Search.from_toml(SEARCH)
    assert Search.from_toml(SEARCH.replace("trials = 12", "trials = 3")).keeps_runs_of(search)
    for old, new in [("16, 32", "16"), ('"median"', '"median", min_epochs = 2'), ("0.5", "0.6")]:
        assert not Search.from_toml(SEARCH.replace(old, new)).keeps_runs_of(search)
    more = SEARCH.replace("workers = 2", "workers = 3")
    assert not Search.from_toml(more).keeps_runs_of(search)  # for the workers are the shards
    shards = "epochs = 4\nshards = 2"
    fixed = Search.from_toml(SEARCH.replace("epochs = 4", shards))
    assert fixed.keeps_runs_of(Search.from_toml(more.replace("epochs = 4", shards)))
