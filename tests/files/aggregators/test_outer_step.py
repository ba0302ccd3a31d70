"""How the outer optimizer moves a version, in step and out of step."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from downpour.base.errors import FileCorrupt, NonFinite, UpdatesRefused
from downpour.base.values import PublishedFile
from downpour.core.spec_fields import Outer
from downpour.files.aggregators import (
    Move,
    Versions,
    first_state,
    is_state_of,
    moved,
    outer_step,
    own_after,
    take_step,
)
from downpour.files.store import Array, DirectoryStore, encode, model_metadata
from downpour.files.store.publish import RetryPolicy

Tensors = dict[str, NDArray[Any]]

RATES: dict[str, Any] = {"learning_rate": 0.5, "momentum": 0.6, "betas": (0.8, 0.9)}


def tensors(seed: int = 0, count: int = 5, dtype: str = "float32") -> Tensors:
    """Return a model: a trained tensor, running means, and how many batches they are of."""
    generator = np.random.default_rng(seed)
    return {
        "weight": generator.normal(size=(count, 3)).astype(dtype),
        "running_mean": generator.normal(size=count).astype("float32"),
        "batches": np.array([seed], dtype=np.int64),
    }


def stepped(asked: Outer, rounds: int, **options: Any) -> tuple[Tensors, Tensors, list[Tensors]]:
    """Take steps from model 0; returns the last model, its state, and what each round gave."""
    model = tensors(**options)
    state = first_state(asked, model, ["weight"])
    given_models = [tensors(seed, **options) for seed in range(1, rounds + 1)]
    for aggregate in given_models:
        made = {name: array.copy() for name, array in aggregate.items()}
        state = take_step(asked, model, made, state)
        model = made
    return model, state, given_models


def expected(name: str, rounds: int) -> NDArray[Any]:
    """Return the trained tensor after some rounds, by the papers' formulas in float64."""
    x = tensors()["weight"].astype(np.float64)
    rate, mu, (one, two), tau = 0.5, 0.6, (0.8, 0.9), 1e-3
    m, v = np.zeros_like(x), np.full_like(x, tau**2)
    for seed in range(1, rounds + 1):
        delta = tensors(seed)["weight"] - x  # Reddi et al. write the difference this way round
        if name in {"sgd", "nesterov"}:
            m = mu * m - delta
            x = x - rate * (m if name == "sgd" else mu * m - delta)
            continue
        m = one * m + (1 - one) * delta
        if name == "adagrad":
            v = v + delta**2
        elif name == "adam":
            v = two * v + (1 - two) * delta**2
        else:
            v = v - (1 - two) * delta**2 * np.sign(v - delta**2)
        x = x + rate * m / (np.sqrt(v) + tau)
    return x


@pytest.mark.parametrize("name", ["sgd", "nesterov", "adagrad", "adam", "yogi"])
def test_the_rules_are_those_of_the_papers(name: str) -> None:
    """Over three rounds, with what is kept from one to the next."""
    model, state, _ = stepped(Outer.make({"optimizer": name, **RATES}), 3)
    assert model["weight"] == pytest.approx(expected(name, 3), rel=1e-4)
    assert model["weight"].dtype == np.float32
    assert is_state_of(Outer.make({"optimizer": name}), state)


@pytest.mark.parametrize("every", [1, 2, 3])
def test_delayed_nesterov_is_that_of_its_paper(every: int) -> None:
    """Liu et al. 2024, algorithm 3 with c = 0, where an update counts one over `every`."""
    rate, mu, count = 0.5, 0.6, 7
    rates = {"learning_rate": rate, "momentum": mu, "every": every}
    asked = Outer.make({"optimizer": "delayed-nesterov", **rates})
    model, state, given_models = stepped(asked, count)
    x = tensors()["weight"].astype(np.float64)
    momentum, buffer = np.zeros_like(x), np.zeros_like(x)
    for version, aggregate in enumerate(given_models):
        delta = every * (x - aggregate["weight"])
        buffer += delta
        if (version + 1) % every:
            x = x - rate * delta / every
        else:
            momentum = mu * momentum + buffer / every
            x = x - rate * (mu * momentum + delta / every)
            buffer = np.zeros_like(x)
    assert model["weight"] == pytest.approx(x, rel=1e-4)
    assert is_state_of(asked, state)
    assert not is_state_of(Outer(optimizer="nesterov"), state)


def test_a_delayed_momentum_goes_on_in_the_middle_of_a_turn() -> None:
    """The state says how many steps it is of, so one that is read from a file is enough."""
    asked, base = Outer.make({"optimizer": "delayed-nesterov", "every": 2}), tensors()
    state = first_state(asked, base, ["weight"])
    made = tensors(1)
    state = take_step(asked, base, made, state)
    assert not state["momentum/weight"].any()
    state = take_step(asked, made, tensors(2), {name: a.copy() for name, a in state.items()})
    assert state["momentum/weight"].any()
    assert not state["buffer/weight"].any()
    del state["count/steps"]
    with pytest.raises(FileCorrupt, match="outer state: belongs to another optimizer"):
        take_step(asked, made, tensors(3), state)


@pytest.mark.parametrize("name", ["sgd", "nesterov"])
def test_nesterov_is_torch_s(name: str) -> None:
    """Which DiLoCo uses for its outer steps."""
    import torch

    model, _, given_models = stepped(Outer.make({"optimizer": name, **RATES}), 3)
    weight = torch.from_numpy(tensors()["weight"].copy())
    optimizer = torch.optim.SGD([weight], lr=0.5, momentum=0.6, nesterov=name == "nesterov")
    for aggregate in given_models:
        weight.grad = weight.clone() - torch.from_numpy(aggregate["weight"])
        optimizer.step()
    assert model["weight"] == pytest.approx(weight.numpy(), rel=1e-5)


def test_buffers_are_the_aggregate_s() -> None:
    """Running means and counters take no steps, and are the same to the bit."""
    model, state, given_models = stepped(Outer(optimizer="adam"), 2)
    for name in ("running_mean", "batches"):
        assert model[name].tobytes() == given_models[-1][name].tobytes()
    assert {key.partition("/")[2] for key in state} == {"weight"}


def heloco(begin: NDArray[Any], given_models: list[Tensors]) -> tuple[NDArray[Any], set[str]]:
    """Return what HeLoCo's workers would begin from at last, and which corrections it took."""
    rate, mu = 0.7, 0.9
    ahead, met = begin.astype(np.float64), set[str]()
    theta, m = ahead.copy(), np.zeros_like(ahead)
    for aggregate in given_models:
        step = ahead - aggregate["weight"]
        if m.any():
            length = np.linalg.norm(step)
            u, v = step / length, m / np.linalg.norm(m)
            cosine, sure = float((u * v).sum()), length / (length + 3 * np.linalg.norm(m))
            if cosine < 0:
                met.add("braked")
                step = step - min(0.5, float(0.5 * -cosine * sure)) * cosine * length * v
            elif cosine < 0.2:
                met.add("turned")
                turn = min(1.0, float((1 - cosine) * sure))
                along = (1 - turn) * u + turn * v
                step = length * along / np.linalg.norm(along)
            else:
                met.add("kept")
        m = mu * m + (1 - mu) * step
        theta = theta - rate * (step + mu * m)
        ahead = theta - rate * mu * m
    return ahead, met


def test_heloco_is_that_of_its_paper() -> None:
    """Steps along the momentum stay, others are turned towards it, those against it are braked."""
    asked = Outer.make({"optimizer": "heloco", "learning_rate": 0.7, "momentum": 0.9})
    met = set[str]()
    for count in range(1, 12):
        model, state, given_models = stepped(asked, 8, count=count)
        sought, corrections = heloco(tensors(count=count)["weight"], given_models)
        assert model["weight"] == pytest.approx(sought, rel=1e-3, abs=1e-4)
        assert is_state_of(asked, state)
        met |= corrections
    assert met == {"kept", "turned", "braked"}


@given(count=st.integers(1, 400), window=st.integers(1, 99), dtype=st.sampled_from(["f2", "f8"]))
def test_windows_have_no_say_in_the_bytes(count: int, window: int, dtype: str) -> None:
    """Nor in those of the state; float16 steps in float32, float64 as it is."""
    asked = Outer(optimizer="yogi")
    whole = stepped(asked, 2, count=count, dtype=dtype)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(outer_step, "_WINDOW", window)
        parts = stepped(asked, 2, count=count, dtype=dtype)
    assert parts[0]["weight"].tobytes() == whole[0]["weight"].tobytes()
    assert {n: a.tobytes() for n, a in parts[1].items()} == {
        n: a.tobytes() for n, a in whole[1].items()
    }
    assert whole[0]["weight"].dtype == dtype
    assert {array.dtype.itemsize for array in whole[1].values()} == {max(4, int(dtype[1]))}


def test_constants_stay_and_an_overflow_is_told() -> None:
    """A mask's infinities are no step; a step into infinity is refused."""
    base, asked = {"weight": np.array([1.0, -np.inf], np.float32)}, Outer(optimizer="sgd")
    state = first_state(asked, base, ["weight"])
    made = {"weight": np.array([0.5, -np.inf], np.float32)}
    take_step(asked, base, made, state)
    assert made["weight"].tolist() == [0.5, -np.inf]
    far = {"weight": np.array([-3e38, -np.inf], np.float32)}
    with pytest.raises(NonFinite, match=r"outer step of weight overflows, with outer\.learning_"):
        take_step(Outer(optimizer="sgd", learning_rate=9), base, far, state)


def test_a_state_of_another_model_is_refused() -> None:
    """Before anything of it is applied."""
    asked, model = Outer(optimizer="adam"), tensors()
    state = first_state(asked, model, ["weight"])
    del state["variance/weight"]
    with pytest.raises(FileCorrupt, match="outer state: belongs to another model: weight"):
        take_step(asked, model, tensors(1), state)
    assert not is_state_of(asked, state)
    assert is_state_of(Outer(optimizer="sgd"), state)


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    """An empty folder."""
    return DirectoryStore(tmp_path, RetryPolicy(seconds=0.1))


def put(store: DirectoryStore, name: str, *numbers: float, count: int = 0) -> PublishedFile:
    """Publish two tensors: floats, and a whole number."""
    tensors: dict[str, Array] = {
        "w": np.array(numbers, np.float32),
        "batches": np.array([count], np.int64),
    }
    return store.put_new(f"{name}.safetensors", encode(tensors, {}))


def test_a_step_is_taken_from_the_version_that_it_began_from(store: DirectoryStore) -> None:
    """The model has come on since: the step is added to what it is now."""
    old, model = put(store, "old", 1.0, 2.0), put(store, "model", 5.0, 5.0)
    update = put(store, "update", 0.5, 4.0, count=7)
    after = moved(Versions(store), model, [Move(shard=0, file=update, base=old, factor=0.5)])
    np.testing.assert_allclose(after["w"], [5 - 0.5 * 0.5, 5 + 0.5 * 2.0])
    assert after["batches"] == 7


def test_steps_from_an_old_version_do_not_carry_a_variance_below_zero(
    store: DirectoryStore,
) -> None:
    """The model's file names its buffers: each lands between what it was and the update's."""
    variance: dict[str, Array] = {"variance": np.array([0.1], np.float32)}
    metadata = model_metadata(["variance"])
    model = store.put_new("model.safetensors", encode(variance, metadata))
    old = store.put_new("old.safetensors", encode({"variance": variance["variance"] + 1}, metadata))
    update = store.put_new("update.safetensors", encode({"variance": variance["variance"] * 2}, {}))
    moves = [Move(shard=shard, file=update, base=old, factor=0.5) for shard in range(3)]
    after = moved(Versions(store), model, moves)
    np.testing.assert_allclose(after["variance"], [0.2 - 0.1 * 0.5**3], rtol=1e-6)


def test_moves_add_up(store: DirectoryStore) -> None:
    """Each by its own base and factor."""
    old, model = put(store, "old", 0.0, 0.0), put(store, "model", 1.0, 1.0)
    one, two = put(store, "one", 1.0, 0.0), put(store, "two", 1.0, 3.0)
    moves = [
        Move(shard=0, file=one, base=old, factor=1.0),
        Move(shard=1, file=two, base=model, factor=0.5),
    ]
    np.testing.assert_allclose(moved(Versions(store), model, moves)["w"], [2.0, 2.0])


def test_model_and_shard_move_by_the_same_distance(store: DirectoryStore) -> None:
    """An elastic meeting keeps their sum, as FedAsync mixes: (1 - a) x + a x_new."""
    model, update = put(store, "model", 5.0, 5.0), put(store, "update", 1.0, 9.0, count=7)
    move = Move(shard=0, file=update, base=model, factor=0.25)
    own, after = own_after(Versions(store), model, move), moved(Versions(store), model, [move])
    np.testing.assert_allclose(own["w"], [2.0, 8.0])
    np.testing.assert_allclose(own["w"] + after["w"], [6.0, 14.0])
    assert own["batches"] == 7
    wild = Move(shard=3, file=put(store, "nan", 1.0, np.nan), base=model, factor=0.25)
    with pytest.raises(UpdatesRefused) as refused:
        own_after(Versions(store), model, wild)
    assert [*refused.value.reasons] == [3]


def test_exactly_the_updates_that_cannot_be_used_are_refused(store: DirectoryStore) -> None:
    """One is missing, one of another shape, one not finite; the fourth is not named."""
    model = put(store, "model", 1.0, 1.0)
    gone = put(store, "gone", 1.0, 1.0)
    store.delete(gone.name)
    files = [
        gone,
        put(store, "long", 1.0, 1.0, 1.0),
        put(store, "nan", 1.0, np.nan),
        put(store, "good", 1.0, 0.0),
    ]
    moves = [Move(shard=s, file=file, base=model, factor=1.0) for s, file in enumerate(files)]
    with pytest.raises(UpdatesRefused) as refused:
        moved(Versions(store), model, moves)
    assert sorted(refused.value.reasons) == [0, 1, 2]


def test_a_sum_that_overflows_refuses_no_update(store: DirectoryStore) -> None:
    """Each update is finite, so none is refused."""
    model, update = put(store, "model", 3e38, 0.0), put(store, "update", -3e38, 0.0)
    move = Move(shard=0, file=update, base=model, factor=-1.0)
    with pytest.raises(NonFinite, match="overflows"):
        moved(Versions(store), model, [move])


def test_a_constant_that_is_not_finite_stays_and_all_beside_it_moves(store: DirectoryStore) -> None:
    """As an attention's mask does; an update that has another number there is refused."""
    model = put(store, "model", -np.inf, 5.0)
    same, other = put(store, "same", -np.inf, 3.0), put(store, "other", 1.0, 3.0)
    after = moved(Versions(store), model, [Move(shard=0, file=same, base=model, factor=0.5)])
    np.testing.assert_array_equal(after["w"], [-np.inf, 4.0])
    with pytest.raises(UpdatesRefused):
        moved(Versions(store), model, [Move(shard=0, file=other, base=model, factor=0.5)])


def test_narrow_numbers_that_overflow_are_noticed(store: DirectoryStore) -> None:
    """Computed in float32 they would be finite; as float16 they are not."""

    def narrow(name: str, number: float) -> PublishedFile:
        tensors: dict[str, Array] = {"w": np.array([number, 1.0], np.float16)}
        return store.put_new(f"{name}.safetensors", encode(tensors, {}))

    base, model, update = narrow("base", 0.0), narrow("model", 60_000.0), narrow("up", 60_000.0)
    with pytest.raises(NonFinite):
        moved(Versions(store), model, [Move(shard=0, file=update, base=base, factor=1.0)])
