"""Heartbeats and what the scheduler decides become forecasts, and never an error."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from downpour.base.values import AttemptId, Forecast, Progress, PublishedFile, Snapshot, SystemState
from downpour.core.scheduler import Scheduler
from downpour.core.scheduler import events as on
from downpour.core.stragglers.base import POLICIES, Policy
from downpour.predictor.features import Features, Request
from downpour.predictor.forecaster import Forecaster
from tests.specs import plain_spec, plain_update

FILE = PublishedFile(name="file", size_bytes=1, checksum="0")
STATE = SystemState(cpu_others=0.5, load_average=1.0, memory_used=0.25, io_wait=0.125)
AT_SAMPLES, AT_SHARD, AT_ROUND = 100, 0, 0


class Oracle:
    """Says that a sample takes a tenth of a second, and remembers what it was asked and told."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.observed: list[tuple[str, Features, float]] = []
        self.broken = False

    def predict(self, worker: str, features: Features) -> Forecast:
        return self.predict_many([(worker, features)])[0]

    def predict_many(self, requests: Sequence[Request]) -> list[Forecast]:
        if self.broken:
            raise ArithmeticError("no weights")
        self.asked = list(requests)
        times = [features["n_samples"] / 10 for _, features in requests]
        return [Forecast.of((0.5 * t, t, 2 * t, 3 * t)) for t in times]

    def observe(self, worker: str, features: Features, seconds: float) -> None:
        self.observed.append((worker, features, seconds))


class Story:
    """A scheduler with two workers, followed by a forecaster."""

    def __init__(self, *, watches: bool = True) -> None:
        plain = POLICIES["wait"]
        policy = Policy(decide=plain.decide, watches=watches)
        self.oracle = Oracle()
        self.forecaster = Forecaster(self.oracle)
        self.core = Scheduler(policies={**POLICIES, "wait": policy})
        self.happen(on.WorkerJoined(at_seconds=0.0, worker="ada"))
        self.happen(on.WorkerJoined(at_seconds=0.0, worker="bob"))
        self.submit("e", 10.0)

    def submit(self, experiment: str, at: float) -> None:
        """Let an experiment begin."""
        spec = plain_spec(shards=2, epochs=2, policy="wait")
        self.happen(on.ExperimentSubmitted(at_seconds=at, experiment=experiment, spec=spec))
        samples = (AT_SAMPLES, AT_SAMPLES)
        self.happen(
            on.Prepared(
                at_seconds=at, experiment=experiment, dataset="d", shard_samples=samples, model=FILE
            )
        )

    def happen(self, event: on.Event) -> None:
        self.forecaster.follow(self.core, event, self.core.handle(event))

    def beat(self, at_seconds: float, worker: str = "ada", steps: int = 0, moved: int = 0) -> None:
        """Let a worker be heard of, with its shard's progress in percent."""
        running = Progress(
            attempt=attempt(worker),
            steps_done=steps,
            steps_total=100,
            elapsed_seconds=0.0,
            moved_bytes=moved,
        )
        told = (running,) if steps else ()
        self.happen(
            on.HeartbeatReceived(at_seconds=at_seconds, worker=worker, running=told, system=STATE)
        )

    def expected_end(self, at_seconds: float, worker: str = "ada") -> float:
        """Let the scheduler learn a forecast; return when it then expects the update."""
        found = self.forecaster.forecasts(at_seconds)
        assert found is not None
        self.core.handle(found)
        known = self.core.state.workers.get(worker)
        assert known is not None
        assert known.forecast is not None
        return known.assigned_at_seconds + known.forecast.q50

    def publish(self, at_seconds: float, worker: str, size_bytes: int = 1) -> None:
        update = plain_update(replace(FILE, size_bytes=size_bytes), samples=1)
        self.happen(
            on.UpdatePublished(
                at_seconds=at_seconds, worker=worker, attempt=attempt(worker), update=update
            )
        )


def attempt(worker: str) -> AttemptId:
    """Return what a worker is at first."""
    return AttemptId(experiment="e", round=0, shard=int(worker == "bob"), attempt=0)


@pytest.fixture
def story() -> Story:
    """Return one whose policy watches."""
    return Story()


def test_the_precision_and_the_device_are_known_from_the_spec_and_the_registration() -> None:
    """A worker with a card trains a spec for the CPU there; an unnamed device is unknown."""
    story = Story()
    story.happen(on.WorkerJoined(at_seconds=11.0, worker="cid", device="cuda:1"))
    story.publish(12.0, "bob")
    assert story.forecaster.forecasts(12.5) is not None
    kinds = {w: {n for n in f if "_" in n and f[n] == 1.0} for w, f in story.oracle.asked}
    assert kinds["ada"] == {"precision_float32"}
    assert kinds["cid"] == {"precision_float32", "device_cpu"}


def test_paces_are_seconds_a_sample_and_remainders_run_from_the_last_report(story: Story) -> None:
    """So that a policy can compare workers with shards of different sizes."""
    story.beat(12.0, steps=30)
    found = story.forecaster.forecasts(12.5)
    assert found is not None
    assert dict(found.paces)["bob"].q50 == pytest.approx(0.1)
    assert dict(found.remaining)[attempt("ada")] == Forecast(q10=3.0, q50=8.0, q90=18.0, q98=28.0)
    assert dict(found.remaining)[attempt("bob")].q50 == 10.0
    story.core.handle(found)
    ada = story.core.state.workers.get("ada")
    assert ada is not None
    assert ada.remaining == dict(found.remaining)[attempt("ada")]


def test_a_predictor_is_told_the_last_report_and_one_well_before(story: Story) -> None:
    """With the machine's state then, by the names of the traces' columns."""
    for at, steps in ((11.0, 10), (12.0, 25), (13.0, 29)):
        story.beat(at, steps=steps)
    story.forecaster.forecasts(13.0)
    running = dict(story.oracle.asked[2:])["ada"]
    assert running["n_samples"] == AT_SAMPLES
    assert {name for name in running if name.endswith("elapsed_s")} == {
        "p10_elapsed_s",
        "p29_elapsed_s",
    }
    assert (running["p10_elapsed_s"], running["p29_elapsed_s"]) == (1.0, 3.0)
    assert (running["p29_cpu_util"], running["p29_iowait"]) == (0.5, 0.125)


def test_durations_are_learned(story: Story) -> None:
    """From the assignment to the report, as it is predicted."""
    story.beat(15.0, steps=50)
    story.publish(21.0, "ada")
    ((worker, features, seconds),) = story.oracle.observed
    assert (worker, seconds, features["p50_elapsed_s"]) == ("ada", 11.0, 5.0)


def test_the_part_that_a_slow_worker_did_is_learned_from_too(story: Story) -> None:
    """Otherwise nothing would be known of a worker whose tasks are always taken away."""
    story.beat(30.0, steps=40)
    snapshot = Snapshot(file=FILE, steps_done=40, steps_total=100)
    story.happen(
        on.HandedOver(at_seconds=31.0, worker="ada", attempt=attempt("ada"), snapshot=snapshot)
    )
    ((worker, features, seconds),) = story.oracle.observed
    assert (worker, features["n_samples"], seconds) == ("ada", 40.0, 20.0)
    # The rest is a task of its own, of sixty samples, for the worker that gets it.
    story.beat(32.0)
    story.forecaster.forecasts(32.0)
    assert [f["n_samples"] for _, f in story.oracle.asked[2:]] == [60.0, 100.0]


def test_a_report_that_came_late_says_when_its_step_ended(story: Story) -> None:
    """Half took four seconds, and the heartbeat came a second later."""
    story.forecaster.assigned("ada", attempt("ada"), AT_SAMPLES, 0.0, 20.0)
    half = Progress(attempt=attempt("ada"), steps_done=50, steps_total=100, elapsed_seconds=4.0)
    story.forecaster.heard("ada", [half], STATE, 25.0)
    story.forecaster.ended("ada", attempt("ada"))
    ((_, features, seconds),) = story.oracle.observed
    assert (features["n_samples"], seconds) == (AT_SAMPLES / 2, 4.0)


def test_it_forecasts_once_a_second(story: Story) -> None:
    """Not without news, and not before each round: where rounds are short, that would cost most."""
    story.beat(11.0, steps=1)
    assert story.forecaster.forecasts(11.0) is not None
    assert story.forecaster.forecasts(20.0) is None
    story.beat(20.1)
    assert story.forecaster.forecasts(20.1) is not None
    story.beat(20.2)
    assert story.forecaster.forecasts(20.2) is None
    story.publish(20.3, "ada")
    story.publish(20.3, "bob")
    assert story.forecaster.forecasts(20.3) is None
    assert story.forecaster.forecasts(21.2) is not None


def test_nothing_is_forecast_before_any_worker_has_reported_or_finished(story: Story) -> None:
    """All that is known then is the machines of the traces, whose tasks took 19 s."""
    for at in (11.0, 13.0):
        story.beat(at)
        assert story.forecaster.forecasts(at) is None
    story.publish(13.5, "bob")
    assert story.forecaster.forecasts(13.5) is not None


def test_nobody_who_wants_to_know_nothing_is_forecast() -> None:
    """`wait` does not look."""
    story = Story(watches=False)
    story.beat(11.0, steps=1)
    assert story.forecaster.forecasts(12.0) is None


def test_a_predictor_that_fails_is_set_aside_with_one_warning(
    story: Story, caplog: pytest.LogCaptureFixture
) -> None:
    """Training goes on without."""
    story.beat(11.0, steps=1)
    story.oracle.broken = True
    assert story.forecaster.forecasts(12.0) is None
    story.publish(13.0, "ada")
    story.beat(14.0)
    assert story.forecaster.forecasts(15.0) is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_start_up_is_not_learned(story: Story) -> None:
    """It happens once: the next task must not be expected to take that long."""
    story.beat(10.5, "bob", steps=1)
    begins = Progress(attempt=attempt("ada"), steps_done=0, steps_total=0, elapsed_seconds=0.0)
    for at in (11.0, 17.0):
        story.happen(
            on.HeartbeatReceived(at_seconds=at, worker="ada", running=(begins,), system=STATE)
        )
    assert story.expected_end(17.0) == 27.0
    story.beat(18.0, steps=50)
    story.publish(19.0, "ada")
    [(worker, features, seconds)] = story.oracle.observed
    assert (worker, features["p50_elapsed_s"], seconds) == ("ada", 1.0, 2.0)


@pytest.mark.parametrize(("steps", "moved"), [(50, 5), (100, 0)])
def test_the_expected_end_stays_while_a_worker_is_at_its_files(
    story: Story, steps: int, moved: int
) -> None:
    """Between two steps or after the last one: the forecast of the whole contains that time."""
    story.beat(15.0, steps=steps)
    assert story.expected_end(15.0) == 20.0
    for at in (17.0, 19.0, 23.0):
        story.beat(at, steps=steps, moved=moved)
        assert story.expected_end(at) == 20.0


def test_while_a_worker_publishes_its_bytes_say_when_it_ends(story: Story) -> None:
    """Two of 100 bytes a second, also between two parts; the next time, before the first one.

    The bytes of another experiment say nothing.
    """
    story.publish(14.0, "bob", size_bytes=100)
    story.beat(20.0, steps=100)
    for at, moved in ((30.0, 20), (35.0, 20), (40.0, 40)):
        story.beat(at, steps=100, moved=moved)
        assert story.expected_end(at) == 70.0
    story.publish(70.0, "ada", size_bytes=100)
    again = Progress(
        attempt=replace(attempt("ada"), round=1), steps_done=9, steps_total=9, elapsed_seconds=0.0
    )
    story.forecaster.assigned("ada", again.attempt, AT_SAMPLES, 0.0, 100.0)
    for at in (110.0, 120.0):
        story.forecaster.heard("ada", [again], STATE, at)
        found = story.forecaster.forecasts(at)
        assert found is not None
        assert dict(found.remaining)[again.attempt].q50 == 50.0
    story.happen(on.ExperimentCancelled(at_seconds=130.0, experiment="e", reason="over"))
    story.submit("f", 130.0)
    other = story.core.state.workers.get("ada").running  # type: ignore[union-attr]
    assert other is not None
    for at, moved in ((150.0, 0), (155.0, 10)):
        publishes = replace(again, attempt=other, moved_bytes=moved)
        story.forecaster.heard("ada", [publishes], STATE, at)
    found = story.forecaster.forecasts(155.0)
    assert found is not None
    assert dict(found.remaining)[other].q50 == 0.0
