"""Audits: which tasks a second worker trains again, who is wrong, and what happens to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from downpour.base.errors import SpecError
from downpour.base.states import ExperimentState, FailureKind
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.spec import Spec
from tests.core.scheduler import make
from tests.core.scheduler.stage import Outcome, Play, of

ONE_CLASS = "torch 2.0 on cpu (x)"


class Audited(Play):
    """A scheduler of some workers of one class; each publishes `right` bytes or others."""

    def __init__(
        self, *workers: str, shards: int = 1, audit: float = 1.0, proven: bool = False, **spec: Any
    ) -> None:
        super().__init__()
        for name in workers:
            self.join(name, numeric_class=ONE_CLASS, process=f"{name} 1")
        self.submit(*[10] * shards, audit=audit, meet=1, epochs=3, **spec)
        for worker in self.core.state.workers if proven else ():
            worker.audits_due = 0

    def train(self, worker: str, content: str = "right") -> list[Outcome]:
        """Let a worker publish an update of this content for the attempt that it has."""
        running = self.worker(worker).running
        assert running is not None
        update = make.update(f"{running.round}-{running.shard}-{running.attempt}-{content}")
        update = replace(update, file=replace(update.file, checksum=content))
        return self.happen(on.UpdatePublished, worker=worker, attempt=running, update=update)

    @property
    def counted(self) -> list[tuple[str, tuple[str, ...]]]:
        """The checksums of the updates that count, and who confirmed each."""
        return [
            (each.update.file.checksum, each.confirmed_by)
            for each in of(self.happened, out.Accepted)
        ]

    @property
    def quarantined(self) -> dict[str, str]:
        """The workers that compute wrong, and why."""
        return {each.worker: each.reason for each in of(self.happened, out.Quarantined)}


def test_an_update_counts_once_another_worker_has_made_it_as_well() -> None:
    """The other begins at once, because it is idle; the files of the second update go."""
    play = Audited("ann", "bob")
    assert [one.worker for one in play.assigned] == ["ann", "bob"]
    play.train("bob")
    assert play.counted == []
    happened = play.train("ann")
    assert play.counted == [("right", ("ann",))]
    assert of(happened, out.Aggregate)
    assert [file.name for one in of(happened, out.Discard) for file in one.files] == ["0-0-0-right"]
    assert play.quarantined == {}


def test_a_worker_audits_only_tasks_of_its_own_numeric_class() -> None:
    """With another class, other bytes would mean nothing; users read that nobody audits."""
    play = Audited("ann")
    play.join("eve", numeric_class="torch 2.0 on cuda")
    play.train("ann", "a's")
    assert play.counted == [("a's", ())]
    assert any("no audits of ann" in line for line in play.said)


def test_two_against_one_and_the_one_tries_again() -> None:
    """Which tells a worker that is wrong each time from one that is wrong now and then."""
    play = Audited("ann", "bob", "cid")
    play.train("ann", "wrong")
    play.train("bob")
    assert play.assigned[-1].worker == "cid"
    play.train("cid")
    assert (play.counted, play.assigned[-1].worker) == ([], "ann")
    play.train("ann", "wrong")
    assert play.counted == [("right", ("cid",))]
    assert "twice the same bytes" in play.quarantined["ann"]
    assert "ann" in play.core.state.workers.unfit_for("one")
    assert [each.worker for each in of(play.happened, out.Contradicted)] == ["ann", "ann"]


@pytest.mark.parametrize("second", ["right", "other"])
def test_a_machine_with_other_bytes_each_time_is_flaky(second: str) -> None:
    """It may be its memory, so it gets no more tasks either."""
    play = Audited("ann", "bob", "cid")
    play.train("ann", "wrong")
    play.train("bob")
    play.train("cid")
    play.train("ann", second)
    assert "is flaky" in play.quarantined["ann"]
    assert [checksum for checksum, _ in play.counted] == ["right"]


def test_two_workers_that_disagree_try_again_if_there_is_no_third() -> None:
    """If one now agrees with the other, it was wrong before; else nobody can decide."""
    play = Audited("ann", "bob")
    play.train("ann", "wrong")
    play.train("bob")
    play.train("ann")
    assert "is flaky" in play.quarantined["ann"]
    play = Audited("ann", "bob")
    for _ in range(2):
        play.train("ann", "a's")
        play.train("bob", "b's")
    assert (play.counted, play.quarantined) == ([("a's", ())], {})
    assert "ann and bob disagree, and no third worker here can decide" in play.said


def test_a_task_that_does_not_repeat_its_bytes_accuses_nobody() -> None:
    """Three workers with three results say so, and the experiment audits nothing more."""
    play = Audited("ann", "bob", "cid", shards=2)
    for worker, content in (("ann", "1"), ("bob", "2"), ("cid", "3")):
        play.train(worker, content)
    while len(play.counted) < 2:
        name = next(worker.name for worker in play.core.state.workers if worker.running)
        play.train(name, f"{name} {play.now}")
    assert play.quarantined == {}
    assert any("the task does not repeat its bytes" in line for line in play.said)


def test_other_updates_of_a_wrong_worker_are_taken_out_and_counted() -> None:
    """What is in no version yet is trained again; the fact names how many are in versions."""
    play = Audited("ann", shards=2, audit=1e-9, proven=True)
    play.train("ann", "hidden")
    play.train("ann", "hidden")
    play.aggregate()
    play.train("ann", "hidden")
    play.worker("ann").audits_due = 1
    play.join("bob", "cid", numeric_class=ONE_CLASS)
    for worker, content in (("ann", "wrong"), ("bob", "right"), ("cid", "right"), ("ann", "wrong")):
        play.train(worker, content)
    (fact,) = of(play.happened, out.Quarantined)
    assert (fact.unaudited, fact.unaudited_since) == (2, 0)
    taken_out = [each for each in of(play.happened, out.GivenUp) if each.worker == "ann"]
    assert [(each.attempt.round, each.attempt.shard) for each in taken_out] == [(1, 0)]


def test_an_experiment_goes_back_to_the_last_version_without_a_wrong_worker() -> None:
    """With `stop_if_wrong` it ends, and keeps that version, from which --resume continues."""
    play = Audited(
        "ann", "bob", "cid", audit=1e-9, proven=True, stop_if_wrong=True, keep_best="loss"
    )
    play.worker("bob").audits_due = 1
    play.train("ann", "hidden")
    for number in range(2):
        play.aggregate(number)
        evaluation = make.evaluation(0.5)
        play.happen(on.Evaluated, experiment="one", round=number, evaluation=evaluation)
        if number == 0:
            play.train("ann", "hidden")
    play.worker("ann").audits_due = 1
    while not of(play.happened, out.Concluded):
        name = next(worker.name for worker in play.core.state.workers if worker.running)
        play.train(name, "wrong" if name == "ann" else "right")
    (end,) = of(play.happened, out.Concluded)
    assert end.ending is ExperimentState.FAILED
    assert (
        "2 updates of it count without an audit, from epoch 1 on; --resume one continues from m0"
        in end.reason
    )
    (cleaned,) = of(play.happened, out.Conclude)
    assert [file.name for file in cleaned.versions] == ["m0"]
    with pytest.raises(SpecError, match="stop_if_wrong = True: has no effect without audit"):
        Spec(stop_if_wrong=True)


def test_an_auditor_that_leaves_is_replaced_or_missed() -> None:
    """The update then counts as it is, so that no round waits for ever."""
    play = Audited("ann", "bob")
    play.train("ann")
    play.happen(on.WorkerLeft, worker="bob", reason="off")
    assert play.counted == [("right", ())]


def test_an_auditor_begins_from_the_start_and_its_failures_end_nothing() -> None:
    """A snapshot may hold the mistake, and a task that one worker has done is not hopeless."""
    play = Audited("ann", "bob", retries=0)
    running = play.worker("ann").running
    assert running is not None
    play.beat("ann", make.progress(running, saved="s1"))
    play.train("ann")
    second = play.worker("bob").running
    assert second is not None
    play.fail("bob", second, FailureKind.TASK, "bad luck")
    assert play.counted == [("right", ())]
    assert all(each.snapshot is None for each in play.assigned)


def test_first_tasks_are_audited_and_more_of_those_who_join_late() -> None:
    """A share near zero draws nothing; one audit, and three, come first."""
    play = Audited("ann", "bob", audit=1e-9)
    play.train("ann")
    play.train("bob")
    play.aggregate()
    play.join("cid", numeric_class=ONE_CLASS)
    assert [play.worker(name).audits_due for name in ("ann", "bob", "cid")] == [0, 0, 3]


def test_a_secret_decides_which_rounds_are_audited() -> None:
    """All tasks of a round in step are drawn together; a worker cannot know which."""

    def drawn(secret: bytes) -> list[bool]:
        play = Audited("ann", "bob", "cid", shards=3, audit=0.5, proven=True)
        play.core.state.secret = secret
        return [bool(of(play.train(name), out.Withheld)) for name in ("ann", "bob", "cid")]

    seen = {bytes([number]): drawn(bytes([number])) for number in range(1, 12)}
    assert {len(set(each)) for each in seen.values()} == {1}
    assert {each[0] for each in seen.values()} == {True, False}


def test_an_audit_needs_tasks_that_repeat_their_bytes() -> None:
    """The refusal says so."""
    with pytest.raises(SpecError, match=r"audit = 0\.1: needs repeatable = true"):
        Spec(audit=0.1, repeatable=False)


def test_a_wrong_update_of_several_workers_accuses_none_of_them() -> None:
    """Either may have made the mistake, so the next tasks of all of them are audited."""
    play = Audited("ann")
    running = play.worker("ann").running
    assert running is not None
    play.beat("ann", make.progress(running, saved="s1"))
    play.join("bob", "cid", "dot", numeric_class=ONE_CLASS)
    play.fail("ann", running, FailureKind.CANCELLED, "goes on elsewhere")
    second = next(worker.name for worker in play.core.state.workers if worker.running)
    play.train(second, "wrong")
    while not play.counted:
        name = next(worker.name for worker in play.core.state.workers if worker.running)
        play.train(name)
    assert (play.counted[0][0], play.quarantined) == ("right", {})
    assert play.worker(second).audits_due == 3


def test_an_audit_never_continues_the_snapshot_of_the_worker_that_it_audits() -> None:
    """It would confirm what the snapshot already has wrong."""
    play = Audited("ann")
    running = play.worker("ann").running
    assert running is not None
    play.beat("ann", make.progress(running, saved="s1"))
    play.join("bob", numeric_class=ONE_CLASS)
    assert play.worker("bob").running is None
    play.train("ann", "wrong")
    assert [each.snapshot for each in play.assigned] == [None, None]
    play.train("bob")
    assert play.counted == []


def test_updates_that_are_taken_out_cost_no_retry() -> None:
    """The wrong worker is to blame, and not its tasks."""
    play = Audited("ann", shards=3, audit=1e-9, proven=True, retries=0)
    play.train("ann", "hidden")
    play.train("ann", "hidden")
    play.worker("ann").audits_due = 1
    play.join("bob", "cid", numeric_class=ONE_CLASS)
    while "ann" not in play.quarantined:
        name = next(worker.name for worker in play.core.state.workers if worker.running)
        play.train(name, "wrong" if name == "ann" else "right")
    assert of(play.happened, out.Concluded) == []
    assert play.worker("ann").running is None


def test_an_idle_auditor_that_fails_is_not_asked_again() -> None:
    """The task goes on where it is."""
    play = Audited("ann", "bob", retries=1)
    running = play.worker("bob").running
    assert running is not None
    play.fail("bob", running, FailureKind.TASK, "bad disk")
    assert play.worker("bob").running is None
    play.train("ann")
    assert play.counted == [("right", ())]


def test_a_restarted_manager_waits_for_workers_before_it_settles() -> None:
    """An update that nobody has confirmed yet does not count because all are away."""
    play = Audited("ann", "bob", "cid")
    play.train("ann", "wrong")
    play.train("bob")
    play.core = play.replica
    play.core.resume()
    play.happened.clear()
    play.happen(
        on.Prepared, experiment="one", shard_samples=(10,), dataset="d", model=make.file("m0")
    )
    assert play.counted == []
    play.join("ann", "bob", "cid", numeric_class=ONE_CLASS)
    assert play.counted == []


def test_a_quarantine_lasts_as_long_as_the_process() -> None:
    """A lost connection and a restarted manager do not end it; another process does."""
    play = Audited("ann", "bob", "cid")
    while "ann" not in play.quarantined:
        name = next(worker.name for worker in play.core.state.workers if worker.running)
        play.train(name, "wrong" if name == "ann" else "right")
    play.join("ann", numeric_class=ONE_CLASS, process="ann 1")
    assert "ann" in play.core.state.workers.unfit_for("one")
    play.core = play.replica
    play.core.resume()
    play.join("ann", numeric_class=ONE_CLASS, process="ann 1")
    assert "ann" in play.core.state.quarantined
    play.join("ann", numeric_class=ONE_CLASS, process="ann 2")
    assert "ann" not in play.core.state.quarantined


def test_a_restarted_manager_knows_that_a_task_does_not_repeat() -> None:
    """Else it would audit all tasks again, in vain."""
    play = Audited("ann", "bob", "cid")
    for name in "ann", "bob", "cid":
        play.train(name, name)
    assert not play.core.state.experiments["one"].audits
    assert not play.replica.state.experiments["one"].audits


def test_a_worker_that_joins_again_is_not_what_it_was_before() -> None:
    """Its machine may be repaired: it need not try again, and gets tasks."""
    play = Audited("ann", "bob", "cid")
    play.train("ann", "wrong")
    play.happen(on.WorkerLeft, worker="ann", reason="repair")
    play.join("ann", numeric_class=ONE_CLASS)
    play.train("bob")
    play.train("cid")
    assert play.counted == [("right", ("cid",))]
    assert "ann" in play.quarantined
    assert play.core.state.quarantined == {}
