"""What the scheduler does with a policy's actions; the test says which they are."""

from dataclasses import replace

import pytest

from downpour.base.values import AttemptId, Forecast
from downpour.core.scheduler import Scheduler
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.stragglers import base
from downpour.core.stragglers.pairing import pair
from tests.core.scheduler import make
from tests.core.scheduler.stage import Outcome, Stage, of

WHY = "the test says so"
SOON = Forecast(q10=1.0, q50=2.0, q90=3.0, q98=4.0)
TO_DOT = base.Handoff(shard=0, worker="ann", meant_for="dot", reason=WHY)


@pytest.fixture
def stage() -> Stage:
    """Ann, bob and cid are training shards 0, 1 and 2; dot is idle."""
    return Stage()


def removed(happened: list[Outcome]) -> set[str]:
    """Return the names of the files that are no longer needed."""
    return {file.name for one in of(happened, out.Discard) for file in one.files}


def publish_all(stage: Stage) -> None:
    """Let all three publish their updates."""
    for shard, worker in enumerate(("ann", "bob", "cid")):
        stage.publish(worker, shard)


def test_a_shard_that_is_handed_over_goes_on_with_whom_it_is_meant_for(stage: Stage) -> None:
    """The owner is asked to publish and stop; the other one goes on from there."""
    [asked] = of(stage.wish(TO_DOT), out.HandOverAsked)
    assert (asked.worker, asked.meant_for) == ("ann", "dot")
    stage.happen(on.Tick)
    leaving = [task for task in stage.views[-1].running if task.meant_for]
    assert [(task.worker, task.leaving_seconds) for task in leaving] == [("ann", 1.0)]
    commands = stage.hand_over("ann", 0, "s5")
    [given] = of(commands, out.Assigned)
    assert (given.worker, given.snapshot.file.name) == ("dot", "s5")
    assert stage.core.state.experiments["one"].round.tasks[0].failures == 0  # type: ignore[union-attr]


def test_two_workers_exchange_their_shards(stage: Stage) -> None:
    """Each waits for the other's; the first to be free takes no other shard meanwhile."""
    stage.wish(
        base.Handoff(shard=0, worker="ann", meant_for="bob", reason=WHY),
        base.Handoff(shard=1, worker="bob", meant_for="ann", reason=WHY),
    )
    assert of(stage.hand_over("ann", 0, "s5"), out.Assigned) == []
    given = of(stage.hand_over("bob", 1, "s2"), out.Assigned)
    assert sorted((a.worker, a.attempt.shard) for a in given) == [("ann", 1), ("bob", 0)]


def test_a_hand_over_tells_the_speed_of_its_worker(stage: Stage) -> None:
    """Else a worker that hands over at its first step would look as fast as the others."""
    attempt = make.attempt("one", 0, 0, 0)
    begun = make.progress(attempt)
    stage.beat("ann", replace(begun, steps_done=0, steps_total=1000, snapshot=None))
    stage.wish(TO_DOT)
    stage.hand_over("ann", 0, "s5")
    assert stage.worker("ann").speed(stage.now) is not None


def test_a_part_of_a_shard_tells_nothing_of_how_slow_a_worker_is(stage: Stage) -> None:
    """Its time covers that part alone; who trains a whole shard is compared with the others."""
    stage.wish(TO_DOT)
    stage.hand_over("ann", 0, "s5")
    stage.publish("bob", 1)
    stage.publish("cid", 2)
    stage.publish("dot", 0, attempt=1)
    stage.aggregate()
    learned = {one.name: len(one.slowness) for one in stage.core.state.workers}
    assert learned == {"ann": 0, "bob": 1, "cid": 1, "dot": 0}


def test_how_slow_a_worker_was_is_learned_from_short_rounds() -> None:
    """A pace is a ratio to the median, also where a sample takes less than a second."""
    stage = Stage((20, 10, 10))
    publish_all(stage)
    stage.aggregate()
    slowness = [list(stage.worker(name).slowness) for name in ("ann", "bob", "cid")]
    assert slowness == [[pytest.approx(ratio)] for ratio in (0.25, 1.0, 1.5)]


def test_a_hand_over_is_asked_of_its_worker(stage: Stage) -> None:
    """Once, however often the policy asks."""
    asked = of(stage.wish(TO_DOT), out.HandOver) + of(stage.wish(TO_DOT), out.HandOver)
    assert asked == [out.HandOver(worker="ann", attempt=make.attempt("one", 0, 0, 0))]


def test_a_shard_meant_for_a_worker_that_leaves_is_anybodys(stage: Stage) -> None:
    """Nothing waits for a worker that is not here."""
    stage.wish(base.Handoff(shard=0, worker="ann", meant_for="bob", reason=WHY))
    stage.happen(on.WorkerLeft, worker="bob", reason="gone")
    given = of(stage.hand_over("ann", 0, "s5"), out.Assigned)
    assert given[0].snapshot is None or given[0].attempt.shard == 0
    assert {task.life.state for task in stage.core.state.active.round.tasks} == {"running"}  # type: ignore[union-attr]


def test_a_hand_over_that_comes_too_late_changes_nothing(stage: Stage) -> None:
    """Its snapshot is removed, and a repeated one is not."""
    stage.wish(TO_DOT)
    stage.happen(on.WorkerLost, worker="ann", reason="nobody answers")
    assert removed(stage.hand_over("ann", 0, "s5")) == {"s5"}
    attempt = make.attempt("one", 7, 0, 0)
    snapshot = make.progress(attempt, saved="s9").snapshot
    late = stage.happen(on.HandedOver, worker="bob", attempt=attempt, snapshot=snapshot)
    assert removed(late) == {"s9"}


def test_a_shard_whose_copy_goes_on_is_reserved_for_nobody(stage: Stage) -> None:
    """If the copy is lost later, the first idle worker gets the shard."""
    stage.wish(
        base.Assignment(shard=0, worker="dot", reason=WHY),
        base.Handoff(shard=0, worker="ann", meant_for="bob", reason=WHY),
    )
    assert of(stage.hand_over("ann", 0, "s5"), out.Assigned) == []
    [given] = of(stage.happen(on.WorkerLost, worker="dot", reason="gone"), out.Assigned)
    assert (given.worker, given.attempt.shard) == ("ann", 0)


def test_the_first_of_several_attempts_counts(stage: Stage) -> None:
    """A copy begins on an idle worker; when one has published, the other is told to stop."""
    [given] = of(stage.wish(base.Assignment(shard=0, worker="dot", reason=WHY)), out.Assigned)
    assert (given.worker, given.attempt.attempt) == ("dot", 1)
    commands = stage.publish("dot", 0, attempt=1)
    [cancelled] = of(commands, out.Cancel)
    assert (cancelled.worker, cancelled.attempt.attempt) == ("ann", 0)
    assert len(of(commands, out.Accepted)) == 1


def test_an_attempt_that_is_withdrawn_is_nobodys_failure(stage: Stage) -> None:
    """Its worker stops, and another one trains the shard from its beginning."""
    commands = stage.wish(
        base.Withdrawal(shard=0, worker="ann", reason=WHY),
        base.Assignment(shard=0, worker="dot", reason=WHY),
    )
    assert [(c.worker, c.attempt.shard) for c in of(commands, out.Assigned)] == [("dot", 0)]
    assert stage.core.state.active.round.tasks[0].failures == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("leave_running", [False, True])
def test_a_round_can_be_closed_without_the_last(stage: Stage, *, leave_running: bool) -> None:
    """It is aggregated from the updates there are; late workers stop, or finish unused."""
    stage.publish("ann", 0)
    stage.publish("bob", 1)
    stage.beat("cid", make.progress(make.attempt("one", 0, 2, 0), saved="s5"))
    commands = stage.wish(base.Close(reason=WHY, leave_running=leave_running))
    [folded] = of(commands, out.Aggregate)
    assert folded.shards == (0, 1)
    assert len(of(commands, out.Cancel)) == (0 if leave_running else 1)
    assert "s5" in removed(commands)
    late = make.attempt("one", 0, 2, 0)
    running = (make.progress(late),)
    assert stage.core.unwanted("cid", running) == ([] if leave_running else [late])
    stage.aggregate()
    stage.publish("cid", 2)
    assert {w.life.state for w in stage.core.state.workers} == {"busy", "idle"}
    assert "cid" in stage.core.state.workers.idle


def test_a_mode_that_has_enough_updates_closes_the_round() -> None:
    """The others stop, and the next round begins from those that were first."""
    stage = Stage(mode="k-sync", mode_options={"k": 2})
    assert of(stage.publish("cid", 2), out.Aggregate) == []
    commands = stage.publish("ann", 0)
    assert [command.shards for command in of(commands, out.Aggregate)] == [(0, 2)]
    assert [command.worker for command in of(commands, out.Cancel)] == ["bob"]
    text = "epoch 1: closed without shard 1: 2 of 3 updates make the version"
    assert stage.said[-1] == text


@pytest.mark.parametrize(("shards", "named"), [(5, "1, 2, 3, 4"), (6, "1, 2, 3, 4 and 1 more")])
def test_of_many_missing_shards_the_first_are_named(shards: int, named: str) -> None:
    """A line fits a screen, however many shards a round leaves out."""
    stage = Stage((10,) * shards)
    stage.publish("ann", 0)
    stage.wish(base.Close(reason=WHY))
    text = f"epoch 1: closed without shards {named}: {WHY}"
    assert stage.said == [text]


def test_a_snapshot_of_an_unwanted_task_is_removed(stage: Stage) -> None:
    """Once, when its worker mentions it; a worker that finishes unused leaves no file behind."""
    stage.publish("ann", 0)
    stage.wish(base.Close(reason=WHY, leave_running=True))
    late = make.progress(make.attempt("one", 0, 2, 0), saved="s5")
    assert removed(stage.beat("cid", late)) == {"s5"}
    assert removed(stage.beat("cid", late)) == set()


def test_no_policy_is_asked_during_a_replay(stage: Stage) -> None:
    """What it has decided is there as well, and comes next."""
    wish = base.Close(reason=WHY)
    core = Scheduler(policies=stage.core.state.policies)
    stage.wishes, asked = [wish], len(stage.views)
    for entry in stage.entries:
        core.replay(0.0, entry)
    assert (len(stage.views), stage.wishes) == (asked, [wish])


def test_a_round_without_any_update_is_not_closed(stage: Stage) -> None:
    """There would be nothing to go on from."""
    assert stage.wish(base.Close(reason=WHY)) == []


def test_a_round_is_cut_anew_only_before_it_begins(stage: Stage) -> None:
    """Sizes of other sums, of none, or too late, are not heard."""
    assert of(stage.wish(base.Resize(samples=(20, 5, 5), reason=WHY)), out.Resized) == []
    publish_all(stage)
    stage.wishes = [
        base.Resize(samples=(20, 5, 6), reason=WHY),
        base.Resize(samples=(30, 0, 0), reason=WHY),
        base.Resize(samples=(25, 1, 4), reason=WHY),
    ]
    commands = stage.aggregate()
    assert [command.samples for command in of(commands, out.Resized)] == [(25, 1, 4)]
    assert [a.portion for a in of(commands, out.Assigned)] == [(0, 25), (25, 26), (26, 30)]


def test_a_task_keeps_the_share_of_its_first_attempt(stage: Stage) -> None:
    """So each attempt has the same steps, whoever trains it; forecasts are of these alone."""
    publish_all(stage)
    stage.wishes = [base.Assignment(shard=0, worker="dot", reason=WHY, share=0.5)]
    happened = stage.aggregate()
    tasks = {(a.attempt.shard, a.attempt.attempt): a.share for a in of(happened, out.Assigned)}
    # The stage's own policy has given shard 0 to ann, its home, and asked for all of it.
    assert tasks == {(0, 0): 0.5, (0, 1): 0.5, (1, 0): 1.0, (2, 0): 1.0}
    task = stage.core.state.experiments["one"].rounds[0].tasks[0]
    assert task.offer.samples == task.samples // 2


def test_why_a_shard_stays_is_told_once_a_round(stage: Stage) -> None:
    """The policy says so at each look; nothing is told of a shard that its worker does not hold."""
    stays = base.Waiting(shard=0, worker="ann", reason=WHY)
    (told,) = of(stage.wish(stays), out.Explained)
    assert (told.round, told.shard, told.worker, told.reason) == (0, 0, "ann", WHY)
    assert stage.said[-1] == f"epoch 1: shard 0 stays at ann: {WHY}"
    assert of(stage.wish(stays), out.Explained) == []
    assert of(stage.wish(replace(stays, shard=1)), out.Explained) == []


def test_a_worker_is_asked_for_once_in_a_while(stage: Stage) -> None:
    """It takes time to start one; the policy sees that it is on its way."""
    assert len(of(stage.wish(base.WorkerRequest(reason=WHY)), out.WorkerRequested)) == 1
    assert of(stage.wish(base.WorkerRequest(reason=WHY)), out.WorkerRequested) == []
    assert [view.requested for view in stage.views[-2:]] == [0, 1]
    stage.join("eve", "fay")
    assert stage.views[-1].requested == 0
    stage.now += 26.0  # and the seconds after which the next things happen
    assert len(of(stage.wish(base.WorkerRequest(reason=WHY)), out.WorkerRequested)) == 1


@pytest.mark.parametrize(
    "wish",
    [
        base.Assignment(shard=0, worker="ann", reason=WHY),
        base.Assignment(shard=0, worker="dot", reason=WHY, share=0.0),
        base.Assignment(shard=0, worker="dot", reason=WHY, share=1.5),
        base.Withdrawal(shard=1, worker="ann", reason=WHY),
        base.Handoff(shard=1, worker="ann", meant_for="dot", reason=WHY),
        base.Handoff(shard=0, worker="ann", meant_for="stranger", reason=WHY),
        base.Handoff(shard=0, worker="ann", meant_for="ann", reason=WHY),
    ],
)
def test_an_impossible_action_is_ignored(stage: Stage, wish: base.Action) -> None:
    """A policy's mistake costs nothing else."""
    assert stage.wish(wish) == []


def test_a_policy_sees_how_far_everybody_is(stage: Stage) -> None:
    """Progress, forecasts, snapshots and what is finished, each with its age."""
    attempt = make.attempt("one", 0, 0, 0)
    stage.publish("bob", 1)
    stage.beat("ann", make.progress(attempt, steps_done=4, saved="s3"))
    stage.happen(on.Forecasts, paces=(("dot", SOON),), remaining=((attempt, SOON),))
    asked = len(stage.views)
    stage.happen(on.Tick)
    view = stage.views[asked]
    [ann] = [task for task in view.running if task.worker == "ann"]
    assert (ann.done, ann.saved, ann.reported_seconds, ann.remaining) == (0.5, 0.5, 2.0, SOON)
    assert ann.elapsed_seconds == 4.0
    assert ann.rate == pytest.approx(0.5 / 2.0)
    assert (view.published.paces, dict(view.paces)) == ([0.1], {"dot": SOON})
    assert view.elapsed_seconds == 4.0


def test_a_policy_sees_the_overhead_of_attempts(stage: Stage) -> None:
    """They train for a second each, and are assigned at once; the middle one of a round counts."""
    for worker, shard in (("ann", 0), ("bob", 1)):
        stage.publish(worker, shard)
    assert stage.views[-1].overhead_seconds == pytest.approx(0.5)
    stage.publish("cid", 2)
    stage.aggregate()
    assert stage.views[-1].round == 1
    assert stage.views[-1].overhead_seconds == pytest.approx(1.0)


def forecast_facts(stage: Stage, attempt: AttemptId) -> list[out.ForecastRecorded]:
    """Return the facts that follow from a forecast of an attempt."""
    output = stage.happen(on.Forecasts, remaining=((attempt, SOON),))
    return of(output, out.ForecastRecorded)


def test_an_assignment_says_how_long_it_is_forecast_to_take(stage: Stage) -> None:
    """The worker's pace, for the samples of the shard that no snapshot holds."""
    stage.happen(on.Forecasts, paces=(("dot", SOON),))
    stage.wish(TO_DOT)
    [given] = of(stage.hand_over("ann", 0, "s5"), out.Assigned)
    assert given.snapshot.share == 0.5
    assert given.forecast == SOON.times(5)
    assert stage.worker("dot").forecast == SOON.times(5)


def test_nothing_is_forecast_of_an_unknown_worker(stage: Stage) -> None:
    """No forecast is better than a guess."""
    [given] = of(stage.wish(base.Assignment(shard=0, worker="dot", reason=WHY)), out.Assigned)
    assert given.forecast is None


def test_predictions_are_put_on_record_once_a_quarter(stage: Stage) -> None:
    """However often they come, there is one after each quarter of the work, none at its begin."""
    attempt = make.attempt("one", 0, 0, 0)
    recorded = forecast_facts(stage, attempt)
    for percent in (10, 26, 30, 40, 80, 90, 100, 100):
        stage.report("ann", attempt, percent)
        recorded += forecast_facts(stage, attempt)
    assert [fact.done for fact in recorded] == [0.26, 0.8, 1.0]
    assert [fact.elapsed_seconds for fact in recorded] == [4.0, 10.0, 14.0]
    assert all(fact.remaining == SOON for fact in recorded)
    assert stage.worker("ann").forecast == SOON.later(14.0)  # since its last step


def test_quarters_are_those_of_an_attempts_remaining_steps(stage: Stage) -> None:
    """An attempt that goes on from the middle is forecast as often as one that begins."""
    stage.wish(TO_DOT)
    stage.hand_over("ann", 0, "s5")
    attempt = make.attempt("one", 0, 0, 1)
    recorded = []
    for percent in (50, 62, 63, 76, 88):
        stage.report("dot", attempt, percent)
        recorded += forecast_facts(stage, attempt)
    assert [fact.done for fact in recorded] == [0.63, 0.76, 0.88]


@pytest.mark.parametrize(
    "wish",
    [
        TO_DOT,
        base.Withdrawal(shard=0, worker="ann", reason=WHY),
        base.Assignment(shard=0, worker="dot", reason=WHY),
        base.Close(reason=WHY),
    ],
)
def test_the_forecast_is_recorded_with_each_decision(stage: Stage, wish: base.Action) -> None:
    """So that the record says what waiting would have taken."""
    attempt = make.attempt("one", 0, 0, 0)
    stage.publish("bob", 1)
    stage.report("ann", attempt, 10)
    assert forecast_facts(stage, attempt) == []
    whole = stage.worker("ann").forecast
    stage.report("ann", attempt, 10)  # without a step, as while it publishes
    [fact] = of(stage.wish(wish), out.ForecastRecorded)
    assert (fact.worker, fact.done, fact.remaining) == ("ann", 0.1, SOON)
    assert whole == SOON.later(fact.elapsed_seconds)


def test_a_prediction_is_told_once(stage: Stage) -> None:
    """Neither a decision nor another one after it repeats what is on record."""
    attempt = make.attempt("one", 0, 0, 0)
    stage.report("ann", attempt, 30)
    assert len(forecast_facts(stage, attempt)) == 1
    wish = base.Assignment(shard=0, worker="dot", reason=WHY)
    assert of(stage.wish(wish), out.ForecastRecorded) == []


def test_the_last_decisions_are_kept_in_words(stage: Stage) -> None:
    """What was done and why, but not who was simply given work; the oldest are forgotten."""
    assert list(stage.core.state.decisions) == []
    stage.wish(TO_DOT)
    stage.wish(base.Assignment(shard=1, worker="dot", reason=WHY))
    stage.publish("dot", 1, attempt=1)
    stage.wish(base.Withdrawal(shard=2, worker="cid", reason=WHY), base.WorkerRequest(reason=WHY))
    stage.wish(base.Close(reason=WHY))
    assert stage.said == [
        f"epoch 1: shard 0 from ann to dot: {WHY}",
        f"epoch 1: shard 1 to dot, too: {WHY}",
        f"epoch 1: shard 2 taken from cid: {WHY}",
        f"epoch 1: one more worker is asked for: {WHY}",
        f"epoch 1: closed without shards 0, 2: {WHY}",
    ]
    stage.wishes = [base.Resize(samples=(20, 4, 6), reason=WHY)]
    stage.aggregate()
    last = stage.core.state.decisions[-1]
    assert last == (stage.now, "one", f"epoch 2: cut anew, 4 to 20 samples a shard: {WHY}")
    for _ in range(100):
        stage.now += 30.0
        stage.wish(base.WorkerRequest(reason=WHY))
    assert len(stage.core.state.decisions) < 100


def test_an_attempt_that_loads_a_snapshot_has_lost_nothing(stage: Stage) -> None:
    """Its progress does not say yet where it goes on; that is no step back, and no speed either."""
    stage.wish(TO_DOT)
    stage.hand_over("ann", 0, "s5")
    again = make.attempt("one", 0, 0, 1)
    loading = replace(make.progress(again), steps_done=0, steps_total=0)
    beats = [loading, make.progress(again, 6), make.progress(again, 7)]
    for progress in (replace(one, steps_total=one.steps_total and 10) for one in beats):
        stage.beat("dot", progress)
        asked = len(stage.views)
        stage.happen(on.Tick)
        [dot] = [task for task in stage.views[asked].running if task.worker == "dot"]
        assert dot.done >= dot.began_at == 0.5
    assert stage.views[asked].speeds["dot"].samples_per_second == pytest.approx(0.1 * 10 / 2.0)


def test_progress_of_a_short_task_is_looked_at_but_not_at_every_report(stage: Stage) -> None:
    """A policy that watches hears of it ten times a second at most."""
    attempt = make.attempt("one", 0, 0, 0)
    stage.happen(on.Tick)
    asked = len(stage.views)
    reports_a_second = 50
    for number in range(reports_a_second):
        progress = replace(
            make.progress(attempt),
            steps_done=number,
            steps_total=reports_a_second,
            elapsed_seconds=number / reports_a_second,
        )
        stage.now += 1.0 / reports_a_second - 1.0
        stage.beat("ann", progress)
    assert 3 <= len(stage.views) - asked <= 10


def test_an_idle_workers_heartbeat_is_no_news_to_a_policy(stage: Stage) -> None:
    """Hundreds of them say every second that they are there."""
    asked = len(stage.views)
    stage.beat("dot")
    assert len(stage.views) == asked


def test_a_worker_that_stands_by_is_told_of_once_while_that_is_so(stage: Stage) -> None:
    """Not at every event, but again where it had a shard in between."""
    progress = make.progress(make.attempt("one", 0, 1, 0))
    for step in (1, 2):
        report = replace(progress, steps_done=step, steps_total=9, elapsed_seconds=float(step))
        stage.beat("bob", report)
    stage.wish(base.Withdrawal(shard=0, worker="ann", reason=WHY))
    said = [{"dot": "too slow"}, {"dot": "too slow"}, {}, {"dot": "too slow again"}]
    teller = base.Policy(decide=lambda _: [], watches=True, standing_by=lambda _: said.pop(0))
    stage.core.state.policies = {"wait": teller}
    stage.core.state.decisions.clear()
    outputs = [stage.core.handle(on.Tick(at_seconds=stage.now)) for _ in range(4)]
    assert stage.said == ["too slow", "too slow again"]
    for silent in (replace(teller, standing_by=None), replace(teller, decide=pair)):
        stage.core.state.policies = {"wait": silent}
        said = [{"ann": "left over by a policy that says nothing, or that leaves no shard"}]
        stage.core.handle(on.Tick(at_seconds=stage.now))
        assert len(stage.core.state.decisions) == 2
    noted = [fact for output in outputs for fact in output.facts]
    assert [(fact.worker, fact.reason) for fact in noted if isinstance(fact, out.Explained)] == [
        ("dot", "too slow"),
        ("dot", "too slow again"),
    ]


def no_luck(view: base.RoundView) -> list[base.Action]:
    """Raise, as a policy with a mistake does."""
    raise ValueError(f"no luck with {view.shards} shards")


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        (no_luck, "ValueError: no luck with 3 shards"),
        (lambda _: ["ann"], "'ann', which is no action"),
        (lambda _: [base.Assignment(shard=3, worker="ann", reason="")], "no such shard"),
        (lambda _: [base.Assignment(shard=0, worker="eve", reason="")], "no such worker"),
    ],
)
def test_a_policy_with_a_mistake_fails_its_experiment_and_no_manager(
    stage: Stage, broken: base.Decide, fault: str
) -> None:
    """The reason names the policy; the experiment after it begins."""
    [policy] = {stage.core.state.experiments["one"].spec.policy}
    kind = replace(stage.core.state.policies[policy], decide=broken)
    stage.core.state.policies = {policy: kind}
    [ended] = of(stage.happen(on.Tick), out.Concluded)
    assert fault in ended.reason.removeprefix(f"policy '{policy}' r")
    assert ended.asked_wrongly
    assert stage.core.state.active is None
