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
# # Lesson 5: Send less
#
# - **Question**: In every round, all workers send all numbers of their models. How few bytes are
#   enough?
# - **Time**: 35 minutes, of which your computer works for less than one.
# - **Before**: [lesson 1](1_averaging.md), for rounds, averaging and splits.
# - **You need**: two cores and the [extras](../start/install.md) `digits,report,dashboard`; no
#   GPU, no network.

# %%
try:
    import downpour, matplotlib, sklearn, uvicorn
except ModuleNotFoundError as missing:
    extras = "pip install 'downpour-sgd[digits,report,dashboard]'"
    raise SystemExit(f"{missing.name} is not installed. Run: {extras}") from None

# %% [markdown]
# ## Two ways to send less
#
# 1. **Send smaller numbers.** A **codec** sends how far training moved each parameter in one
#    byte, in three bits, or as no more than "up", "down" or "stay".
# 2. **Send less often.** Workers can meet eight times an epoch, or once.
#
# ## What happens to what you leave out?
#
# In each round, a worker wants to move 4,096 parameters a little, in nearly the same directions.
# The codec `ternary` sends -1, 0 or 1 for each, and one scale for all. So small moves become 0.
# If the worker forgets them, it loses the same moves in every round.
#
# With **error feedback**, the worker keeps what it did not send, and adds it to the next round. A
# third way needs no memory: `terngrad` *draws* whether a small number becomes 0 or 1, so that it
# is right on average.
#
# We add up the sent numbers, round by round, and compare the sum with the wanted one.

# %%
import matplotlib.pyplot as plt
import numpy as np
from downpour.files.compression import CODECS


def sent(codec, numbers):
    """Return what the receiver reads."""
    received = np.empty_like(numbers)
    CODECS[codec].decode(CODECS[codec].encode(numbers), received)
    return received


def errors_by_round(codec, feedback, rounds=60):
    """Return how far what was sent is from what was wanted, as a share of it, after each round."""
    draw = np.random.default_rng(0)
    direction = draw.normal(size=4096).astype(np.float32)
    wanted, total, left = (np.zeros(4096, np.float32) for _ in range(3))
    errors = []
    for _ in range(rounds):
        move = direction + draw.normal(scale=0.3, size=4096).astype(np.float32)
        wish = move + left if feedback else move
        received = sent(codec, wish)
        left = wish - received
        wanted, total = wanted + move, total + received
        errors.append(float(np.linalg.norm(total - wanted) / np.linalg.norm(wanted)))
    return errors


lost = {
    "ternary, forgets": errors_by_round("ternary", feedback=False),
    "ternary, error feedback": errors_by_round("ternary", feedback=True),
    "terngrad, drawn at random": errors_by_round("terngrad", feedback=False),
}

# %% alt="Error of the sum over 60 rounds, for three ways. If the codec forgets, it stays; with error feedback it falls fast, and with random rounding it falls slowly."
figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
for name, errors in lost.items():
    axes.plot(range(1, len(errors) + 1), [100 * error for error in errors], label=name)
axes.set(xlabel="round", ylabel="error of the sum, %", ylim=0)
axes.legend()
plt.show()

# %% [markdown]
# A codec that forgets stays wrong. With memory, or by drawing, the errors of many rounds cancel.
# So Downpour's codecs either remember (`ternary`, `topk`), or draw (`terngrad`, `int3`), or lose
# next to nothing (`int8`).
#
# ## Your prediction
#
# Now we train the digits with four shards for eight epochs: with whole numbers and with a codec,
# with eight meetings an epoch and with one. We do so with shards that are alike (`random`), and
# that hold different digits (`class`). **Write down your prediction**:
#
# 1. How many points of accuracy does the codec cost?
# 2. How many points does it cost to meet once instead of eight times? Is it the same for both
#    splits?
#
# The next cell has the one value to change. From many bytes to few: `int8`, `int3`, `terngrad`,
# `ternary`, `topk`.

# %% tags=["parameters"]
CODEC = "terngrad"

# %% [markdown]
# The codec is for updates and for models, if it can be: `ternary` and `topk` remember what each
# *shard* did not send, so they are for updates only.

# %%
REMEMBERS = {"ternary", "topk"}


def train(codec, meet, split):
    spec = {"shards": 4, "epochs": 8, "meet": meet, "split": split, "compression": codec}
    spec |= {"model_compression": "none" if codec in REMEMBERS else codec}
    spec |= {"learning_rate": 0.05, "momentum": 0.0, "outer": {"optimizer": "none"}}
    spec |= {"optimizer_state": "reset"}
    return downpour.run(spec, workers=2, on="inline")  # threads: they start faster


WAYS = [("none", 8), ("none", 1), (CODEC, 8), (CODEC, 1)]
alike = {way: train(*way, "random") for way in WAYS}

# %%
different = {way: train(*way, "class") for way in WAYS}


# %%
def kilobytes(result):
    return sum(epoch.bytes for epoch in result.epochs) / 1000


print(f"{'codec':10} {'meetings':>8} {'kB':>9} {'fewer':>7}   accuracy: shards alike, different")
for way in WAYS:
    size = kilobytes(alike[way])
    fewer = kilobytes(alike["none", 8]) / size
    both = f"{alike[way].accuracy:23.1%} {different[way].accuracy:10.1%}"
    print(f"{way[0]:10} {way[1]:8} {size:9,.0f} {fewer:6.0f}×   {both}")

# %% alt="Accuracy over kilobytes on a logarithmic scale. Shards that are alike: a flat line. Different shards: one meeting an epoch is lower, with and without the codec."
figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
for split, results in {"shards alike": alike, "shards different": different}.items():
    for codec, marker in {"none": "o", CODEC: "s"}.items():
        points = [(kilobytes(results[codec, m]), 100 * results[codec, m].accuracy) for m in (8, 1)]
        color = "C0" if split == "shards alike" else "C1"
        axes.semilogx(
            *zip(*points, strict=True), f"{marker}-", color=color, label=f"{split}, {codec}"
        )
axes.set(xlabel="kB written in the whole training", ylabel="accuracy, %")
axes.legend()
plt.show()

# %% [markdown]
# On each line, the right point meets eight times an epoch, and the left one once. The next cell
# checks the lesson's claim on your machine.

# %% tags=["check"]
whole, least = alike["none", 8], alike[CODEC, 1]
fewer = kilobytes(whole) / kilobytes(least)
assert fewer > 20, (
    f"{CODEC} and one meeting an epoch take {fewer:.0f} times fewer bytes than whole numbers and "
    "eight meetings. They should take at least 20 times fewer: is CODEC 'none'?"
)
for way in WAYS[1:]:
    points = 100 * (whole.accuracy - alike[way].accuracy)
    assert points < 3, (
        f"With shards that are alike, {way[0]} with {way[1]} meetings an epoch lost {points:.1f} "
        f"points. CODEC = {CODEC!r} "
        + (
            "sends one number of 64 at a time, so what it left out comes many rounds late, and eight "
            "epochs have too few rounds."
            if CODEC == "topk"
            else "should lose less than 3: does the model learn at all without a codec?"
        )
    )
drift = 100 * (different["none", 8].accuracy - different["none", 1].accuracy)
assert drift > 1, (
    f"With different shards, one meeting an epoch lost {drift:.1f} points. It should lose more than "
    "1: do the shards really hold different digits (split='class')?"
)
print(
    f"The check passed: {fewer:.0f} times fewer bytes cost less than 3 points with shards that are"
)
print(f"alike, and with different shards one meeting an epoch cost {drift:.1f} points.")

# %% [markdown]
# ## What we found, and why
#
# - **Rough numbers cost little.** A codec that is right on average, or remembers, is wrong in
#   each round and right over many. Besides, training corrects what the codec got wrong.
# - **Meeting rarely is free if shards are alike.** With different shards, each worker walks
#   toward its own digits, and the average cancels more of a longer way.
# - **The savings multiply**, because one makes each message smaller and the other sends fewer.
# - **A tight codec needs many rounds.** Error feedback keeps numbers back, and in a short training
#   some never arrive.
#
# ## Exercises
#
# 1. Set `CODEC = "topk"`. The check fails, and says why. How many epochs does it take until
#    `topk` with eight meetings is as good as whole numbers?
# 2. Set `CODEC = "int8"`. How many times fewer bytes could it save at most, and how near is it?
# 3. In `errors_by_round`, set `scale=0` so that every round wants exactly the same. Error
#    feedback still works, but `terngrad` now stays wrong. (It draws from the numbers themselves,
#    so that all machines draw alike.) Why does that hardly ever happen in training?
#
# ## Read on
#
# - [Fewer bytes](../how-to/fewer-bytes.md) has all codecs, and [more
#   workers](../how-to/more-workers.md) says how often to meet.
