"""What an experiment remembers of its rounds, its models and its files."""

import pytest

from downpour.core.scheduler.experiment import Experiment
from downpour.core.scheduler.queue import is_whole, leading_to, spent_models
from downpour.core.scheduler.updates import pushes_of
from tests.core.scheduler import make


def started(**fields: object) -> Experiment:
    """Return an experiment whose first round has begun: one shard unless said otherwise."""
    spec = make.spec(**{"shards": 1, "epochs": 4, **fields})
    experiment = Experiment("one", spec)
    experiment.shard_samples = (10,) * spec.shards
    experiment.models.append(make.file("m0"))
    experiment.start_round()
    return experiment


def publish(experiment: Experiment, shard: int = 0, at_seconds: float = 0.0) -> None:
    """Train a shard of the oldest round."""
    current = experiment.rounds[0]
    update = make.update(f"u{current.number}")
    attempt = experiment.assign(current, shard, "ann", 0.0)
    accepted = make.accepted(attempt, "ann", update)
    current.publish(accepted, 1.0)
    experiment.arrive(accepted, at_seconds)


def train(experiment: Experiment) -> None:
    """Train and close a round."""
    publish(experiment)
    experiment.applying = experiment.due(0.0)
    experiment.take_version(make.file(f"m{experiment.version + 1}"))
    spent_models(experiment)
    experiment.start_round()


@pytest.mark.parametrize(
    ("every", "rounds"), [(0, []), (1, [0, 1, 2, 3]), (2, [1, 3]), (3, [2, 3]), (9, [3])]
)
def test_the_last_model_is_always_measured(every: int, rounds: list[int]) -> None:
    """After every `evaluate_every` rounds, and after the last; with 0 never."""
    experiment = started(evaluate_every=every)
    for _ in range(4):
        train(experiment)
    assert list(experiment.evaluating) == rounds


@pytest.mark.parametrize(
    ("before", "every", "rounds"), [(0, 1, [1, 3, 5, 7]), (0, 3, [5, 7]), (3, 1, [0, 2, 4, 6])]
)
def test_models_are_measured_when_an_epoch_ends(before: int, every: int, rounds: list[int]) -> None:
    """With two meetings every other round, also where the first epoch had begun before."""
    fields = {"meet": 2, "evaluate_every": every, "rounds_before": before}
    experiment = started(**fields, **({"init_from": "x"} if before else {}))
    while not experiment.training_is_done:
        train(experiment)
    assert experiment.rounds_done == 8 - before % 2
    assert list(experiment.evaluating) == rounds


def test_training_ends_after_epochs_without_a_better_model() -> None:
    """Two epochs of three rounds: nothing is begun while an evaluation may still end it."""
    experiment = started(meet=3, stop_after=2)
    for number, loss in ((2, 0.5), (5, 0.7), (8, 0.6)):
        for _ in range(3):
            train(experiment)
        assert experiment.may_start_round == (number < 8)
        experiment.take_evaluation(number, make.evaluation(loss=loss))
    assert experiment.training_is_done
    assert experiment.why_it_ends == "no better loss since epoch 1"


@pytest.mark.parametrize(("comparable", "epochs"), [(True, 2), (False, 4)])
def test_patience_counts_the_epochs_before_a_resumption_if_they_were_compared(
    *, comparable: bool, epochs: int
) -> None:
    """After two epochs, two more without a value end the training; else four do."""
    before = {"init_from": "x", "rounds_before": 6, "best_checksum": "0" if comparable else None}
    experiment = started(epochs=9, meet=3, stop_after=4, **before)
    for number in range(epochs):
        assert not experiment.training_is_done
        for _ in range(3):
            train(experiment)
        experiment.take_evaluation(3 * number + 2, make.evaluation(loss=float("nan")))
    assert experiment.training_is_done
    assert experiment.why_it_ends == "no better loss at all"


def test_the_outer_state_is_kept_with_the_newest_model_alone() -> None:
    """It is needed to go on, and spent once the next model has its own; at the end it stays."""
    experiment = started()
    experiment.outer = make.file("o0")
    publish(experiment)
    experiment.applying = experiment.due(0.0)
    assert make.file("o0") in experiment.files()
    assert make.file("o0") in experiment.take_version(make.file("m1"), make.file("o1"))[1]
    assert make.file("o1") in experiment.files()
    assert make.file("o1") not in experiment.close()


def test_updates_stay_until_a_newer_outer_state_is_published() -> None:
    """Another manager computes the state from them, also if a worker has repeated its report."""
    experiment = started()
    experiment.outer = make.file("o0")
    spent = []
    for outer in (None, make.file("o2")):
        publish(experiment)
        experiment.applying = experiment.due(0.0)
        pushes = pushes_of(experiment)
        files = [push.update.file for push in pushes]
        model = make.file(f"m{experiment.version + 1}")
        spent.append((experiment.take_version(model, outer, pushes=pushes)[1], files))
        experiment.start_round()
        if outer is None:
            assert {*files, make.file("o0")} <= {*experiment.files()}
            assert all(experiment.needs(push.shard, push.update.file) for push in pushes)
    [(first, held), (second, files)] = spent
    assert not first
    assert {*second} == {*held, *files, make.file("o0")}


def test_versions_stay_back_to_the_whole_one_from_which_steps_lead_to_them() -> None:
    """If versions are steps, one in 32 is whole, and the newest three need all since then."""
    experiment = started(epochs=36, model_compression="int3", evaluate_every=0)
    oldest = []
    for _ in range(35):
        train(experiment)
        oldest.append(experiment.models[0].name)
    assert oldest == ["m0"] * 33 + ["m32"] * 2


@pytest.mark.parametrize("mode", ["sync", "fedasync"])
def test_a_version_that_may_become_the_best_is_whole(mode: str) -> None:
    """Later steps lead from it, so no version before it stays."""
    fields = {"evaluate_every": 4, "keep_best": "loss", "model_compression": "int3"}
    experiment = started(mode=mode, epochs=9, **fields)
    for number in range(8):
        train(experiment)
        if number in experiment.evaluating:
            experiment.take_evaluation(number, make.evaluation(loss=float(number)))
    assert [file.name for file in experiment.models] == ["m4", "m5", "m6", "m7", "m8"]
    assert [leading_to(experiment, make.file(name)) for name in ("m6", "m4")] == [
        (make.file("m4"), make.file("m5")),
        (),
    ]


def test_a_version_in_the_making_is_whole_if_it_ends_a_round_to_evaluate() -> None:
    """If shards are rounds apart, such a round ends with its last update."""
    fields = {"evaluate_every": 2, "keep_best": "loss", "model_compression": "int3"}
    experiment = started(shards=2, mode="fedasync", epochs=9, **fields)
    whole = []
    for version, shard in enumerate((0, 1) * 4, start=1):
        publish(experiment, shard)
        experiment.applying = experiment.due(0.0)
        whole += [version] if is_whole(experiment, version) else []
        experiment.take_version(make.file(f"m{version}"))
        experiment.start_rounds()
    assert whole == [4, 8]
    ahead = started(shards=2, epochs=2, outer={"optimizer": "nesterov"}, **fields)
    ahead.version = 1
    assert is_whole(ahead, 2)  # the last one, although the result is its mean


def test_a_quorum_waits_for_a_grace_window() -> None:
    """It begins with the last update of the quorum; updates that arrive in it count as well."""
    options = {"quorum": 2, "grace_seconds": 5.0}
    experiment = started(shards=4, mode="quorum", mode_options=options)
    due = []
    for shard, at_seconds, asked_at in ((2, 1.0, 99.0), (0, 3.0, 7.9), (1, 4.0, 8.0)):
        publish(experiment, shard, at_seconds)
        due.append(experiment.due(asked_at))
    assert due == [(), (), ((0, 0), (0, 1), (0, 2))]


def test_a_base_stays_until_its_last_update_is_applied() -> None:
    """In a round that goes on, too, while shards that are done have their next task at hand."""
    experiment = started(shards=3, mode="fedasync", keep_models=1, evaluate_every=0)
    experiment.assign(experiment.rounds[0], 1, "bob", 0.0)
    kept = []
    for shard in (0, 1):
        publish(experiment, shard)
        experiment.applying = experiment.due(0.0)
        experiment.take_version(make.file(f"m{shard + 1}"))
        spent_models(experiment)
        experiment.start_rounds()
        kept.append([file.name for file in experiment.models])
    assert kept == [["m0", "m1"], ["m2"]]
    at_hand = [task.life.who for task in experiment.tasks_at_hand()]
    assert at_hand == ["task round 1 shard 0", "task round 1 shard 1", "task round 0 shard 2"]


@pytest.mark.parametrize(("continues", "base"), [(False, "m0"), (True, "former")])
def test_the_first_of_overlapping_rounds_begins_from_the_newest_version(
    *, continues: bool, base: str
) -> None:
    """If its shards continue with steps of an earlier experiment, from the version before it."""
    experiment = started(overlap=1)
    experiment.models.insert(0, make.file("former"))
    experiment.steps = {0: make.file("u")} if continues else {}
    experiment.assign(experiment.rounds[0], 0, "ann", 0.0)
    task = experiment.rounds[0].tasks[0]
    assert (task.base, experiment.version - task.base_version) == (make.file(base), int(continues))


def test_evaluations_may_overtake_each_other() -> None:
    """What is shown as the last evaluation is that of the latest round."""
    experiment = started()
    train(experiment)
    train(experiment)
    experiment.take_evaluation(1, make.evaluation(accuracy=0.9))
    experiment.take_evaluation(0, make.evaluation(accuracy=0.1))
    assert experiment.last_evaluation == make.evaluation(accuracy=0.9)
    assert experiment.evaluating == {}


def test_attempts_of_rounds_that_the_end_has_broken_off_are_known() -> None:
    """In an asynchronous mode several are open; an update that comes later can be removed."""
    experiment = started(mode="downpour")
    experiment.start_round()
    experiment.close()
    assert all(experiment.knows(make.attempt("one", number, 0, 0)) for number in (0, 1))
    assert not experiment.knows(make.attempt("one", 2, 0, 0))
