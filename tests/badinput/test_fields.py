"""Every field of the spec, given what it does not accept: by option, in a file and in Python."""

import tomllib
from pathlib import Path

import pytest

from downpour.base.errors import SpecError
from downpour.cli.spec_options import parse_fields
from downpour.core.spec import Spec
from tests.badinput.conftest import Refused

# Values as TOML has them, and what the line must say is accepted.
WHOLE = "must be a whole number"
FIELDS: dict[str, tuple[str, ...]] = {
    "name": ("letters, digits", "''", "'.hidden'", "'a/b'", "'a b'", "'é'", f"'{'n' * 65}'", "5"),
    "seed": (WHOLE, "-1", "9223372036854775808", "1.5", "'one'", "true", "nan"),
    "task": ("inherits from downpour.Task", "''", "3", "true", "[]"),
    "task_options": ("", "3", "'a=1'", "[1]", "{depth = 3}"),
    "dataset": ("package.module:factory", "''", "3", "true", "[]"),
    "data_path": ("", "3", "true", "['a']"),
    "image_size": (f"{WHOLE} of at least 1 and at most 4096", "0", "-3", "4097", "28.5", "'28x28'"),
    "flip": ("true or false", "1", "'yes'", "[true]"),
    "train_limit": (f"{WHOLE} of at least 1", "0", "-10", "1e3", "'all'"),
    "test_limit": (f"{WHOLE} of at least 1", "0", "-10", "0.5", "false"),
    "dataset_options": ("a table", "3", "'a=1'", "[1]"),
    "model": ("torchvision.models name, or a factory", "''", "7", "['mlp']"),
    "init_from": ("", "3", "''", "true", "['a']"),
    "init_checksum": ("", "3", "'a'", "[]"),
    "outer_checksum": ("", "3", "'a'", "[]"),
    "states_checksum": ("", "3", "'a'", "[]"),
    "best_checksum": ("", "3", "'a'", "[]"),
    "data_key": ("letters, digits and hyphens", "3", "''", "'../x'", "[]"),
    "code": ("a table", "1", "'x'", "[]"),
    "code_bundle": ("64 hexadecimal digits", "3", "''", f"'{'A' * 64}'", f"'{'a' * 63}'", "[]"),
    "packages": ("a table", "1", "'torch'", "['torch']", "{torch = 2}"),
    "model_options": ("a table", "0.5", "'dropout'", "[]"),
    "loss": ("cross_entropy or binary_cross_entropy", "'mse'", "'cross-entropy'", "1", "''"),
    "mode": ("must be sync, k-sync, downpour, ssp", "'async'", "'SYNC'", "0"),
    "mode_options": ("a table", "1", "'bound=1'"),
    "shards": (f"{WHOLE} of at least 1 and at most 100000", "0", "-1", "100001", "2.0", "'four'"),
    "split": ("dirichlet(ALPHA)", "'iid'", "'dirichlet'", "'dirichlet(0)'", "5"),
    "batches": ("shuffled or balanced", "'random'", "32", "''"),
    "order": ("auto, random, blocks or given", "'block'", "1", "''", "true"),
    "batch_size": (f"{WHOLE} of at least 1", "0", "-32", "1000001", "32.0", "'32'"),
    "last_batch": ("even, rest or drop", "'drops'", "true", "0", "''"),
    "epochs": (f"{WHOLE} of at least 1", "0", "-1", "1000001", "1.5", "'3'", "true", "inf"),
    "overlap": (f"{WHOLE} of at least 0", "-1", "2", "0.5", "'on'", "true"),
    "meet": (f"{WHOLE} of at least 1", "0", "-1", "2.5", "'often'", "true", "1000001"),
    "inside": ("a table", "2", "[]"),
    "outer": ("a table", "3", "[]", "['sgd']"),
    "rounds_before": (f"{WHOLE} of at least 0", "-1", "1.5", "'all'", "1000001"),
    "local_steps": (f"{WHOLE} of at least 1", "0", "-5", "2.5", "'none'"),
    "aggregate": (
        "average, weighted, samples, first, median or trimmed-mean(SHARE)",
        "'mean'",
        "'fedavg'",
        "1",
    ),
    "compression": ("none, ", "'zip'", "8", "''"),
    "model_compression": ("none, ", "'zip'", "8", "''"),
    "policy": ("wait, drop, backup", "'none'", "'hand-off'", "true"),
    "policy_options": ("a table", "1", "'slowness=2'"),
    "needs": ("a list of labels: KEY or", "'gpu'", "['']", "['a b']", "['-a=1']", "[3]", "true"),
    "prefers": ("a list of labels: KEY or", "'gpu'", "['=b']", "[['gpu']]", "0"),
    "shard_needs": (
        "a table that gives shards, by number, lists of labels",
        "['gpu']",
        "'3'",
        "{x = ['gpu']}",
        "{3 = 'gpu'}",
    ),
    "standbys": (f"{WHOLE} of at least 0", "-1", "0.5", "'one'"),
    "audit": ("a number of at least 0 and at most 1", "-0.1", "1.1", "nan", "'few'"),
    "stop_if_wrong": ("true or false", "1", "'no'"),
    "retries": (f"{WHOLE} of at least 0 and at most 1000", "-1", "1001", "1.0", "'few'"),
    "snapshot_every": ("a number of at least 0", "-1", "'10 s'", "nan", "inf", "true"),
    "evaluate_every": (f"{WHOLE} of at least 0", "-1", "0.1", "'epoch'"),
    "evaluate_batch": (f"{WHOLE} of at least 1", "0", "-1", "1000001", "2.5", "'all'"),
    "validation": (
        "a number of at least 0 and below 1",
        "-0.1",
        "1",
        "1.5",
        "'0.1 '",
        "nan",
        "true",
    ),
    "keep_models": (f"{WHOLE} of at least 1", "0", "-1", "'all'"),
    "keep_best": ("loss", "''", "'min:'", "' loss'", "3", "true"),
    "stop_after": (f"{WHOLE} of at least 1", "0", "-1", "1.5", "'never'"),
    "optimizer": ("sgd, adam or adamw", "'SGD'", "'rmsprop'", "''", "1"),
    "learning_rate": ("a number above 0", "0", "-0.1", "'fast'", "nan", "inf", "true", "[0.1]"),
    "scale_rate": ("true or false", "4", "'auto'", "[true]"),
    "momentum": ("a number of at least 0 and below 1", "1", "-0.1", "1.5", "'0.9'", "nan"),
    "nesterov": ("true or false", "1", "'on'"),
    "weight_decay": ("a number of at least 0", "-0.0001", "'L2'", "inf"),
    "betas": (
        "two numbers, each at least 0 and below 1",
        "0.9",
        "[0.9]",
        "[0.9, 1.0]",
        "[1, 2, 3]",
    ),
    "epsilon": ("a number above 0", "0", "-1e-8", "'tiny'"),
    "schedule": ("constant, cosine, linear or step", "'StepLR'", "''", "1"),
    "warmup": ("at least 0 and below 1, or a whole", "1.5", "-0.1", "500.0", "'none'", "nan"),
    "final_rate": ("a number of at least 0 and at most 1", "-0.1", "1.5", "'low'"),
    "decay": ("a number above 0 and at most 1", "0", "-0.1", "2", "'half'"),
    "decay_every": (f"{WHOLE} of at least 1", "0", "1.5", "'round'"),
    "clip_norm": ("a number above 0", "0", "-1", "'none'", "inf"),
    "accumulate": (f"{WHOLE} of at least 1", "0", "-1", "100001", "0.5", "'auto'"),
    "optimizer_state": ("reset or keep", "'none'", "true"),
    "repeatable": ("true or false", "1", "'no'"),
    "threads": (f"{WHOLE} of at least 1 and at most 1024", "0", "1025", "2.0", "'all'"),
    "precision": ("float32, bfloat16 or float16", "'float8'", "32"),
    "device": ("cpu, cuda, mps, xpu or auto, or one of several", "'gpu'", "'cuda:'", "0"),
    "channels_last": ("true or false", "1", "'yes'"),
}
TABLES = {
    "task_options",
    "dataset_options",
    "model_options",
    "mode_options",
    "policy_options",
    "code",
    "packages",
    "inside",
    "outer",
    "shard_needs",
}
FLAGS = {"repeatable", "stop_if_wrong", "scale_rate", "flip", "nesterov", "channels_last"}


def test_every_field_has_its_values() -> None:
    """A new field of the spec needs some, too."""
    assert FIELDS.keys() == Spec.model_fields.keys()


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_refuses_values_by_one_rule(field: str) -> None:
    """An option is text at first, and what it means is refused in the same words."""
    accepted, *values = FIELDS[field]
    for value in values:
        finite = value in {"nan", "inf"} and accepted.startswith("a number")
        words = f"a finite{accepted[1:]}" if finite else accepted
        given = tomllib.loads(f"value = {value}")["value"]
        with pytest.raises(SpecError) as refused:
            Spec.make({field: given})
        line = str(refused.value)
        assert all(part in line for part in (f"{field} = ", repr(given)[:60], words)), line
        if field not in TABLES | FLAGS and (text := _refusal(field, value.strip("'"))):
            assert f"{field} = " in text
            assert words in text


def _refusal(field: str, words: str) -> str:
    """Return the line that refuses an option's text; some texts mean a value that is fine."""
    try:
        Spec.make(parse_fields({field: words}))
    except SpecError as error:
        return str(error)
    return ""


DOORS = {
    "file": ("run FILE", "epochs = 0"),
    "option": ("run --epochs=0", ""),
    "submitted file": ("submit FILE", "epochs = 0"),
    "grid": ("grid FILE", 'name = "n"\nworkers = 1\nepochs = [1, 0]'),
    "search": ("tune FILE", 'name = "n"\nworkers = 1\n[search]\nepochs = [1, 0]'),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_door_shows_the_line_of_the_rule(bad: Refused, door: str) -> None:
    """Python raises it (`test_python.py`)."""
    words, text = DOORS[door]
    Path("FILE").write_text(f"{text}\n")
    bad(words.split(), "epochs = 0: must be a whole number of at least 1")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("epoch", "did you mean epochs?"),
        ("lr", "did you mean learning_rate?"),
        ("bs", "did you mean batch_size?"),
        ("learning-rate", "did you mean learning_rate?"),
        ("Epochs", "did you mean epochs?"),
        ("datasets", "did you mean dataset?"),
        ("shard", "did you mean shards?"),
        ("momentun", "did you mean momentum?"),
        ("aggregation", "did you mean aggregate?"),
        ("zzz", "the nearest are"),
        ("x" * 500, "the nearest are"),
    ],
)
def test_an_unknown_field_names_the_nearest(bad: Refused, typed: str, meant: str) -> None:
    """In a file; `_` and `-`, and initials, are mistaken often."""
    Path("spec.toml").write_text(f"{typed} = 3\n")
    bad(["run", "spec.toml"], typed[:40], "no such field", meant)
