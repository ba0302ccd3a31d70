"""The spec: what it accepts, how it refuses, and that TOML carries it without loss."""

import contextlib
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.base.errors import SpecError
from downpour.core.spec import Meetings, Spec
from downpour.core.spec_fields import Inside, Outer
from tests.specs import plain_spec

texts = st.text(max_size=20)
numbers = st.floats(allow_nan=False, allow_infinity=False)
options = st.dictionaries(
    st.text(min_size=1, max_size=8),
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | numbers
    | texts
    | st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3)
    | st.lists(numbers, max_size=3)
    | st.lists(texts, max_size=3),
    max_size=3,
)
specs = st.fixed_dictionaries(
    {},
    optional={
        "name": st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True),
        "seed": st.integers(0, 2**63 - 1),
        "dataset": st.just("npz"),
        "shards": st.none() | st.integers(1, 100_000),
        "split": st.sampled_from(["random", "class", "equal", "dirichlet(0.5)", "dirichlet(1e-3)"]),
        "learning_rate": st.floats(0, 1e300, exclude_min=True) | st.integers(1, 10),
        "betas": st.lists(st.floats(0, 1, exclude_max=True), min_size=2, max_size=2),
        "optimizer": st.sampled_from(["sgd", "adam", "adamw"]),
        "flip": st.booleans(),
        "meet": st.integers(1, 1_000_000) | st.just("auto"),
        "outer": st.fixed_dictionaries(
            {"optimizer": st.sampled_from(["none", "sgd", "adam"])},
            optional={"betas": st.lists(st.floats(0, 0.9), min_size=2, max_size=2)},
        ),
        "dataset_options": options,
        "model_options": options,
    },
)


@given(fields=specs, name=st.text(min_size=1, max_size=20))
def test_toml_carries_a_spec_without_loss(fields: dict[str, Any], name: str) -> None:
    """Every spec is read back equal from the TOML it writes."""
    path = {"data_path": name} if "dataset" in fields else {}
    spec = Spec.make({**fields, **path})
    assert Spec.from_toml(spec.to_toml()) == spec


def test_a_whole_number_serves_as_a_float() -> None:
    """`learning_rate = 1` means 1.0."""
    assert Spec.from_toml("learning_rate = 1").learning_rate == 1.0


@pytest.mark.parametrize(
    "fields",
    [
        {"model_options": {"number": 2**63 - 1, "numbers": [-(2**63), 2**63 - 1]}},
        {"inside": {"processes": 3}, "batch_size": 3},
    ],
)
def test_the_largest_values_are_accepted(fields: dict[str, Any]) -> None:
    """The numbers that TOML can hold, and as many processes as a batch has examples."""
    assert Spec.from_toml(Spec.make(fields).to_toml()) == Spec.make(fields)


@pytest.mark.parametrize(
    ("fields", "codec"),
    [
        ({}, "none"),
        ({"compression": "int8"}, "int8"),
        ({"overlap": 1}, "float32"),
        ({"overlap": 1, "compression": "int8"}, "int8"),
    ],
)
def test_an_overlapping_shard_sends_a_difference(fields: dict[str, Any], codec: str) -> None:
    """It goes on from its update, so without compression it sends all digits of its difference."""
    assert Spec.make(fields).update_codec == codec


def test_a_word_in_a_tables_place_is_its_first_field() -> None:
    """`outer = "none"` is shorter than a table of one line."""
    assert Spec.from_toml('outer = "none"') == Spec(outer=Outer(optimizer="none"))
    assert Spec.from_toml('inside = "auto"') == Spec(inside=Inside(how="auto"))
    with pytest.raises(SpecError, match="optimizer = 'nestrov': must be auto, none, sgd"):
        Spec.from_toml('outer = "nestrov"')


def test_defaults_left_out_of_a_resolved_spec_are_no_auto() -> None:
    """Written without defaults, it means the same where it is read as a spec that may be open."""
    resolved = plain_spec(shards=3, optimizer_state="reset")
    text = resolved.to_toml(without_defaults=True)
    assert Spec.from_toml(text).model_dump() == resolved.model_dump()


def test_replace_validates_again() -> None:
    """A change is held to the same rules as the first making."""
    assert Spec().replace(epochs=2).epochs == 2
    with pytest.raises(SpecError, match="epochs = 0"):
        Spec().replace(epochs=0)


REFUSALS: list[tuple[dict[str, Any], str]] = [
    (
        {"outer": {"optimizer": 1}},
        (
            "outer.optimizer = 1: must be auto, none, sgd, nesterov, delayed-nesterov, heloco, "
            "adagrad, adam or yogi"
        ),
    ),
    (
        {"outer": {"optimizer": "auto", "momentum": 0.5}},
        "outer.momentum = 0.5: optimizer = 'auto' chooses it; name an optimizer to set it",
    ),
    (
        {"outer": {"optimizer": "auto", "betas": [0.5, 0.9]}},
        "outer.betas = [0.5, 0.9]: optimizer = 'auto' chooses it; name an optimizer to set it",
    ),
    ({"outer": {"momentm": 0.5}}, "outer.momentm = 0.5: no such field; did you mean momentum?"),
    (
        {"inside": {"processes": 0}},
        "inside.processes = 0: must be a whole number of at least 1 and at most 256",
    ),
    (
        {"inside": {"threads": 2}},
        "inside.threads = 2: no such field; the nearest are processes, how and cut",
    ),
    (
        {"inside": {"processes": 2, "how": "weights"}},
        "inside.how = 'weights': must be data, pipeline, hybrid or auto",
    ),
    (
        {"inside": {"processes": 2, "how": "hybrid"}, "precision": "bfloat16"},
        "inside.how = 'hybrid': needs precision = 'float32'",
    ),
    ({"inside": {"how": "pipeline"}}, "inside.how = 'pipeline': needs processes above 1"),
    (
        {"inside": {"processes": 2, "cut": ["dense"]}},
        "inside.cut = ['dense']: works only with how = 'pipeline'",
    ),
    (
        {"inside": {"processes": 3, "how": "pipeline", "cut": ["dense"]}},
        "inside.cut = ['dense']: 3 processes need 2 first modules",
    ),
    (
        {"inside": {"processes": 2, "how": "pipeline", "cut": "dense"}},
        "inside.cut = 'dense': must be a list of module names",
    ),
    ({"inside": {"processes": 2}, "device": "cuda"}, "inside.processes = 2: needs device = 'cpu'"),
    (
        {"inside": {"processes": 4}, "batch_size": 3},
        "inside.processes = 4: a batch of 3 has fewer examples",
    ),
    ({"outer": {"momentum": 1}}, "outer.momentum = 1: must be a number of at least 0 and below 1"),
    (
        {"outer": {"betas": [0, 1]}},
        "outer.betas = [0.0, 1.0]: must be two numbers, each at least 0 and below 1",
    ),
    (
        {"outer": {"optimizer": "delayed-nesterov", "momentum": 0}},
        "outer.momentum = 0: delayed-nesterov needs a momentum above 0; sgd does not",
    ),
    (
        {"outer": {"optimizer": "nesterov", "every": 4}},
        "outer.every = 4: works only with optimizer = 'delayed-nesterov'",
    ),
    (
        {"outer": {"optimizer": "delayed-nesterov", "every": -1}},
        "outer.every = -1: must be a whole number of at least 0",
    ),
    (
        {"outer_checksum": "a"},
        "outer_checksum = 'a': needs init_from, whose outer optimizer's state it is",
    ),
    (
        {"states_checksum": "a"},
        "states_checksum = 'a': needs init_from, whose optimizer states they are",
    ),
    ({"nesterov": True, "momentum": 0.0}, "nesterov = True: needs a momentum above 0"),
    ({"nesterov": True, "optimizer": "adam"}, "nesterov = True: is an option of sgd, not of adam"),
    ({"data_path": "x"}, "data_path = 'x': dataset 'digits' has no path; npz and folder do"),
    (
        {"data_path": "\udcff"},
        "data_path = '\\udcff': must be UTF-8, because other machines read it",
    ),
    (
        {"epochs": 0, "seed": -1},
        (
            "seed = -1: must be a whole number of at least 0 and below 9223372036854775808 "
            "(and 1 more: epochs)"
        ),
    ),
]


@pytest.mark.parametrize(("fields", "line"), REFUSALS)
def test_an_invalid_field_is_refused_in_one_line(fields: dict[str, Any], line: str) -> None:
    """The line names the field, the value as it was asked for, and what would be accepted."""
    with pytest.raises(SpecError) as refusal:
        Spec.make(fields)
    said = str(refusal.value)
    assert said == line
    assert refusal.value.exit_status == 2


def test_many_invalid_fields_do_not_flood_the_line() -> None:
    """The first is told in full, three more by name, the rest by their number."""
    with pytest.raises(SpecError, match=r"\(and 4 more: split, epochs, retries, …\)"):
        Spec.make({"seed": -1, "split": "", "epochs": 0, "retries": -1, "zzz": 1})


@pytest.mark.parametrize("text", ["epochs = ", "= 3", "a = " + "9" * 5000, "a = " + "[" * 5000])
def test_text_that_is_not_toml_is_refused_in_one_line(text: str) -> None:
    """Any text that is sent as a spec is accepted or refused, never an internal error."""
    with pytest.raises(SpecError, match=r"TOML = .*: cannot be read: ") as refusal:
        Spec.from_toml(text)
    assert "\n" not in str(refusal.value)


@given(fields=st.dictionaries(st.sampled_from(sorted(Spec.model_fields)) | texts, options | texts))
def test_any_fields_make_a_spec_or_one_line(fields: dict[str, Any]) -> None:
    """There is no third outcome."""
    with contextlib.suppress(SpecError):
        assert isinstance(Spec.make(fields), Spec)


def test_however_a_spec_is_made_a_mistake_is_the_same_line() -> None:
    """The class itself, `make`, `replace`, TOML and pydantic's own ways; none tells of pydantic."""
    ways: list[Callable[[], Spec]] = [
        lambda: Spec(epoch=3),  # type: ignore[call-arg]
        lambda: Spec.make({"epoch": 3}),
        lambda: Spec().replace(epoch=3),
        lambda: Spec.from_toml("epoch = 3"),
        lambda: Spec.model_validate({"epoch": 3}),
    ]
    for way in ways:
        with pytest.raises(SpecError) as refused:
            way()
        assert str(refused.value) == "epoch = 3: no such field; did you mean epochs?"


def test_a_spec_never_changes() -> None:
    """Who sets a field is told how to have another spec; the spec stays as it was."""
    spec = Spec()
    with pytest.raises(SpecError, match=r"^epochs = 3: .*spec\.replace\(epochs="):
        spec.epochs = 3
    assert spec == Spec()


@pytest.mark.parametrize(
    ("fields", "factories"),
    [
        ({"model": "mlp"}, {}),
        ({"model": "mine:net"}, {"model": "mine:net"}),
        ({"task": "mine:Task"}, {"task": "mine:Task"}),
    ],
)
def test_images_have_the_plain_layout_for_code_of_ones_own(
    fields: dict[str, str], factories: dict[str, str]
) -> None:
    """It may depend on that."""
    spec = Spec.make(fields)
    (code,) = fields.items()
    assert (spec.factories, spec.trained_code) == (factories, code)
    assert spec.trains_own_code == bool(factories) != spec.images_channels_last


@pytest.mark.parametrize("model", ["mlp", "mine:net"])
def test_who_knows_better_chooses_the_layout(model: str) -> None:
    """In either way, and for any network."""
    for there in (True, False):
        assert Spec(model=model, channels_last=there).images_channels_last == there


def test_a_path_is_a_data_path() -> None:
    """People have paths as values of their own."""
    assert Spec(dataset="npz", data_path=PurePath("a/b.npz")).data_path == "a/b.npz"  # type: ignore[arg-type]


def test_without_meetings_a_round_is_an_epoch() -> None:
    """As `meet` = 1 is the default; if an epoch has several, people look for the epoch first."""
    for meetings in (Meetings(3), Spec(epochs=3).meetings):
        assert meetings.rounds == 3
        assert [meetings.epoch_of(number) for number in range(3)] == [0, 1, 2]
        assert all(meetings.ends_epoch(number) for number in range(3))
        assert meetings.named(2) == "epoch 3"
    assert Meetings(5, 10).named(24) == "epoch 3, round 25"


@given(epochs=st.integers(1, 20), each=st.integers(1, 12), before=st.integers(0, 60))
def test_an_experiment_may_go_on_in_the_middle_of_an_epoch(
    epochs: int, each: int, before: int
) -> None:
    """Its rounds are those of a training without the stop, whose epochs it counts on."""
    whole = Meetings(before // each + epochs, each)
    rest = Meetings(epochs, each, before)
    assert before + rest.rounds == whole.rounds
    assert rest.epochs_in_all == whole.epochs
    for number in range(rest.rounds):
        assert rest.epoch_of(number) == whole.epoch_of(before + number)
        assert rest.ends_epoch(number) == whole.ends_epoch(before + number)
    assert rest.ends_epoch(rest.rounds - 1)
