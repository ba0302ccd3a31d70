# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Lesson 3: Old news, and why momentum makes it worse
#
# - **Question**: What happens if no worker waits for any other?
# - **Time**: 30 minutes, of which your computer works for about half of one.
# - **Before**: [lesson 1](1_averaging.md) and [lesson 2](2_stragglers.md). You have heard of
#   gradients and momentum.
# - **You need**: two cores and the [extras](../start/install.md) `digits,report,dashboard`; no
#   GPU, no network.

# %%
try:
    import downpour, matplotlib, sklearn, uvicorn
except ModuleNotFoundError as missing:
    extras = "pip install 'downpour-sgd[digits,report,dashboard]'"
    raise SystemExit(f"{missing.name} is not installed. Run: {extras}") from None

# %% [markdown]
# ## Without a barrier
#
# So far, every round ended with a *barrier*. An *asynchronous* mode has none: a worker that
# finishes a shard adds its step to the model at once, which makes a new *version*. Then it goes
# on from the newest version.
#
# Look at a worker that began from version 10. While it trained, seven others finished, so its
# step meets version 17. The number of versions in between, here 7, is the *staleness* of the
# step.
#
# ## Your prediction
#
# **Write down your prediction**:
#
# 1. With eight workers, how stale is a step on average?
# 2. *Momentum* makes each step go on a bit in the direction of the steps before it. Should
#    asynchronous training have more of it than training with a barrier, the same, or less?
#
# The next cell has the one value to change.

# %% tags=["parameters"]
WORKERS = 8  # and as many shards

# %% [markdown]
# ## See the staleness
#
# We train the same shards with a barrier (`sync`) and without one (`downpour`). The workers are
# threads of this program.


# %%
def train(mode):
    """Train for three epochs; every worker meets the model three times in each."""
    spec = {"shards": WORKERS, "epochs": 3, "meet": 3, "mode": mode}
    return downpour.run(spec, workers=WORKERS, on="inline")


barrier = train("sync")
free = train("downpour")

# %% alt="Timeline with a barrier: all workers begin each round together."
barrier.timeline()

# %% alt="Timeline without a barrier: each worker begins its next shard at once."
free.timeline()

# %% [markdown]
# Lines of the record of the kind `aggregated` name the staleness of each step.

# %%
import json
from collections import Counter


def staleness_in(result):
    """Return the staleness of every step of a run, in order."""
    with (result.folder / "record.jsonl").open() as record:
        facts = [json.loads(line) for line in record]
    return [old for fact in facts if fact["kind"] == "aggregated" for old in fact["staleness"]]


staleness = staleness_in(free)
mean_staleness = sum(staleness) / len(staleness)
for versions, count in sorted(Counter(staleness).items()):
    print(f"{versions:3} versions old: {'#' * count}")
print(f"\nOn average, a step is {mean_staleness:.1f} versions old. With a barrier, none is stale.")

# %% [markdown]
# ## What staleness does
#
# We walk down the parabola w² / 2 to its lowest point. The gradient at w is w itself, so a fresh
# step goes from w to w - rate · w. Now steps are stale by chance, and we average two thousand
# such walks. Then we walk once with fresh steps, but with momentum. Ioannis Mitliagkas and others
# proved that the two are the same: with M workers, staleness acts like a momentum of 1 - 1/M, and
# the rate shrinks to 1/M.

# %% alt="Fresh steps fall smoothly; stale steps swing around 0, just as momentum does."
import matplotlib.pyplot as plt
import numpy as np

RATE, STEPS = 0.5, 60
random = np.random.default_rng(0)


def stale_walk(workers, walks=2000):
    """Walk down with steps of random staleness, and return where walks are on average."""
    places = np.ones((STEPS + 1, walks))
    for step in range(STEPS):
        old = random.geometric(1 / workers, walks) - 1  # 0 or more; workers - 1 on average
        began = np.maximum(step - old, 0)
        gradient = np.where(old <= step, places[began, np.arange(walks)], 0)
        places[step + 1] = places[step] - RATE * gradient
    return places.mean(axis=1)


def momentum_walk(momentum, rate):
    """Walk down with fresh steps and momentum."""
    places, speed = [1.0], 0.0
    for _ in range(STEPS):
        speed = momentum * speed - rate * places[-1]
        places.append(places[-1] + speed)
    return np.array(places)


stale = stale_walk(WORKERS)
predicted = momentum_walk(1 - 1 / WORKERS, RATE / WORKERS)

figure, axis = plt.subplots(figsize=(8, 3), layout="constrained")
axis.plot(momentum_walk(0, RATE), ":", label="fresh steps, no momentum")
axis.plot(stale, label=f"stale steps of {WORKERS} workers, no momentum")
axis.plot(predicted, "--", label=f"fresh steps, momentum {1 - 1 / WORKERS:.3g}")
axis.set(xlabel="step", ylabel="w")
axis.legend()
plt.show()

# %% [markdown]
# Staleness *is* momentum: you didn't ask for it, and you can't turn it off.
#
# ## Two momentums add up
#
# What if you add your own? We train a small model of the digits with the staleness that your run
# measured, and with fresh steps, each with four momentums.

# %%
from sklearn.datasets import load_digits

images, labels = load_digits(return_X_y=True)
images = np.c_[images / 16, np.ones(len(images))]


def probabilities(weights, rows):
    """Return how likely the model finds each digit, for some images."""
    scores = images[rows] @ weights
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return scores / scores.sum(axis=1, keepdims=True)


def loss_after(staleness, momentum, rate=0.3, steps=300):
    """Train from steps of this staleness, and return the loss: the lower, the better."""
    random = np.random.default_rng(1)
    versions, speed = [np.zeros((65, 10))], 0.0
    for step, old in enumerate(np.resize(staleness, steps)):
        rows = random.integers(0, len(images), 32)
        error = probabilities(versions[max(0, step - old)], rows)
        error[np.arange(32), labels[rows]] -= 1
        speed = momentum * speed - rate * images[rows].T @ error / 32
        versions.append(versions[-1] + speed)
    right = probabilities(versions[-1], np.arange(len(images)))[np.arange(len(images)), labels]
    return -np.log(np.maximum(right, 1e-12)).mean()


MOMENTUMS = [0, 0.3, 0.6, 0.9]
fresh_loss = {momentum: loss_after([0], momentum) for momentum in MOMENTUMS}
stale_loss = {momentum: loss_after(staleness, momentum) for momentum in MOMENTUMS}

print(f"{'momentum':>8} {'fresh steps':>12} {'stale steps':>12}   (loss)")
for momentum in MOMENTUMS:
    print(f"{momentum:8} {fresh_loss[momentum]:12.3f} {stale_loss[momentum]:12.3f}")

# %% [markdown]
# The next cell checks the lesson's claim on your machine.

# %% tags=["check"]
assert mean_staleness > 2, (
    f"The updates were hardly stale, {mean_staleness:.1f} versions on average: with "
    f"WORKERS = {WORKERS}, few train at a time. The claims need more of them, such as 8."
)
assert not staleness_in(barrier), "With a barrier, the record should have no stale step."
assert np.abs(stale - predicted).max() < 0.1, (
    f"Stale steps and momentum lead {np.abs(stale - predicted).max():.2f} apart; 2,000 walks "
    "should be enough to bring that below 0.1."
)
best_fresh, best_stale = min(fresh_loss, key=fresh_loss.get), min(stale_loss, key=stale_loss.get)
assert best_stale < best_fresh, (
    f"The best momentum is {best_stale} for stale steps and {best_fresh} for fresh ones, so "
    f"staleness did not act as momentum here. It was {mean_staleness:.1f} on average."
)
print(
    f"The check passed: the best momentum is {best_fresh} for fresh steps, and {best_stale} for "
    "stale ones."
)

# %% [markdown]
# ## What we found, and why
#
# - **Staleness is about the number of workers, less one.** While one of them trains, each of the
#   others finishes about once.
# - **A stale step repeats what the model wanted earlier**, as momentum does. So the two add up,
#   and the same momentum overshoots. The more workers there are, the less momentum you should
#   add.
#
# So Downpour leaves its [outer momentum](../concepts/rounds.md#the-outer-step) off in
# asynchronous modes. And often you need no asynchrony at all: lesson 2 showed a way to wait less
# that keeps the barrier, and the same bytes in every run.
#
# ## Exercises
#
# 1. Set `WORKERS = 4`, and then 2. What happens to the staleness, and to the best momentum? At 2
#    workers the check fails; is its reason right?
# 2. Run `train("downpour")` twice, and compare the bytes of the two models. Why do they differ,
#    and why do those of `train("sync")` not? [Replay](../how-to/replay.md) says how to get the
#    same bytes again.
#
# ## Read on
#
# - [Lesson 4](4_crashes.md) kills everything that can be killed.
# - [Asynchronous training](../concepts/asynchronous.md) has all nine modes.
# - Mitliagkas, Zhang, Hadjis and Ré, *Asynchrony begets Momentum, with an Application to Deep
#   Learning* (2016). Dean et al., *Large Scale Distributed Deep Networks* (2012), introduced
#   Downpour SGD.
