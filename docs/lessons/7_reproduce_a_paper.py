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
# # Lesson 7: Reproduce a paper, and find its bug
#
# - **Question**: A report says that ten machines learn nothing at all if each of them sees one
#   digit only. Is that a fact about distributed training, or a bug?
# - **Time**: 40 minutes, of which your computer works for less than one.
# - **Before**: [lesson 0](0_first_run.md) and [lesson 1](1_averaging.md), for rounds, averaging
#   and splits.
# - **You need**: two cores and the [extras](../start/install.md) `digits,report,dashboard`; no
#   GPU, no network.

# %%
try:
    import downpour, matplotlib, sklearn, uvicorn
except ModuleNotFoundError as missing:
    extras = "pip install 'downpour-sgd[digits,report,dashboard]'"
    raise SystemExit(f"{missing.name} is not installed. Run: {extras}") from None

# %% [markdown]
# ## What the report says
#
# The ECE751 report trains a network on MNIST. Its workers train a shard each; after every epoch
# they average their parameters. It cuts the images at random, evenly, and by class: the first
# worker sees only zeros, the second one only ones, and so on. It prints these accuracies:
#
# | setting | after epoch 1, % | after epoch 5, % |
# |---|--:|--:|
# | 1 worker | 95.41 | 98.64 |
# | 10 workers, random | 85.37 | 92.65 |
# | 10 workers, even | 87.58 | 93.51 |
# | 10 workers, by class | 9.80 | 9.80 |
#
# To reproduce a paper means to ask of each number: would it come out again? And if not, who is
# wrong, they or we?
#
# ## Your prediction
#
# Look at the last row. **Write down your prediction**:
#
# 1. Ten models are averaged that know one digit each. How much will their average know after five
#    rounds: nothing (10 %), some (up to 40 %), much (up to 90 %), or all?
# 2. What may a model do that has *exactly* the same accuracy after one epoch and after five?
#
# ## As the report describes it
#
# We take the report's momentum and epochs, and the mean of all parameters after each epoch. MNIST
# takes minutes, so we train on scikit-learn's small digits, with smaller batches and a higher
# learning rate. If the variable `DOWNPOUR_DATA` names a folder with MNIST, the lesson takes 6,000
# images of it.
#
# A round comes to the same bytes with any number of workers, so two of them train all ten shards.

# %%
import os

DIGITS = {"batch_size": 16, "learning_rate": 0.05}
MNIST = {"dataset": "mnist", "model": "mnist-cnn", "train_limit": 6000, "batch_size": 16}
DATA = MNIST | {"learning_rate": 0.02} if os.environ.get("DOWNPOUR_DATA") else DIGITS

REPORT = {"epochs": 5, "momentum": 0.5, "last_batch": "rest", "optimizer_state": "reset"}
REPORT |= {"policy": "wait", "outer": {"optimizer": "none"}, "meet": 1}


def train(shards, split, aggregate):
    spec = REPORT | DATA | {"shards": shards, "split": split, "aggregate": aggregate}
    return downpour.run(spec, workers=min(shards, 2), on="inline")


SPLITS = {"random": "random", "even": "equal", "by class": "class"}
one_worker = train(1, "random", "average")
described = {name: train(10, split, "average") for name, split in SPLITS.items()}


# %%
def row(setting, result):
    first, last = (100 * result.epochs[epoch].accuracy for epoch in (0, -1))
    print(f"{setting:22} {first:8.2f} {last:8.2f}")


print(f"{'accuracy, %':22} {'epoch 1':>8} {'epoch 5':>8}")
row("1 worker", one_worker)
for name, result in described.items():
    row(f"10 workers, {name}", result)

# %% [markdown]
# One worker learns most, because ten workers make a tenth of the steps each. The last row does
# not look like the report's. So either we made a mistake, or the report did. We look for a
# *hypothesis* that explains 9.80.
#
# ## What has exactly 9.80 %?
#
# MNIST's test images contain 980 zeros in 10,000. A model that calls *everything* a zero has 9.80
# % accuracy. And which worker sees only zeros? The first. That leads to the code that was
# published with the report. Shortened, its loop does this:
#
# ```python
# for epoch in range(epochs):
#     for model in models:  # each worker trains its shard
#         train(model)
#     mean = average(models)  # computed, and then not used
#     models = [copy(models[0]) for _ in models]
# ```
#
# The average is never stored. Every round goes on from the first worker's model. Downpour has
# this as an aggregation, `first`. The next cell has the one value to change, the hypothesis: how
# does the report's code make one model out of ten?

# %% tags=["parameters"]
AGGREGATE = "first"  # or "average", "weighted" (by loss), "samples" (by the size of the shard)

# %%
hypothesis = {name: train(10, split, AGGREGATE) for name, split in SPLITS.items()}

print(f"{'accuracy, %':22} {'epoch 1':>8} {'epoch 5':>8}")
for name, result in hypothesis.items():
    row(f"10 workers, {name}", result)

# %% alt="Two panels. Left: accuracy by epoch of the split by class; the mean rises, the hypothesis does not. Right: accuracy on each digit after the last epoch."
import matplotlib.pyplot as plt

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
for label, result in {"mean": described["by class"], AGGREGATE: hypothesis["by class"]}.items():
    epochs = [epoch.epoch for epoch in result.epochs]
    left.plot(epochs, [100 * epoch.accuracy for epoch in result.epochs], "o-", label=label)
    known = [100 * share for share in result.epochs[-1].class_accuracy]
    right.bar([digit + 0.4 * (label != "mean") for digit in range(10)], known, 0.4, label=label)
left.set(
    xlabel="epoch", ylabel="accuracy, %", title="Shards by class", ylim=(0, 100), xticks=epochs
)
right.set(xlabel="digit", title="Accuracy on each digit, after the last epoch", xticks=range(10))
left.legend()
plt.show()

# %% [markdown]
# The right panel is the evidence: with `first`, the model calls everything a zero. The next cell
# checks the lesson's claim on your machine.

# %% tags=["check"]
last = hypothesis["by class"].epochs[-1]
digits_known = [digit for digit, share in enumerate(last.class_accuracy) if share > 0]
assert last.class_accuracy == (1.0,) + 9 * (0.0,), (
    f"AGGREGATE = {AGGREGATE!r} does not explain the report. Its 9.80 % are of a model that calls "
    f"every image a zero, and this one knows something of the digits {digits_known}."
)
accuracies = {epoch.accuracy for epoch in hypothesis["by class"].epochs}
assert len(accuracies) == 1, f"The accuracy should not move from epoch to epoch: {accuracies}."
mean = described["by class"].accuracy
assert mean > 2 * last.accuracy, (
    f"The mean of ten models came to {mean:.1%}, hardly more than {last.accuracy:.1%}. Then the "
    "report's last row says nothing about its code: look at the learning rate and the epochs."
)
assert one_worker.accuracy > described["random"].accuracy, (
    "Ten workers learned more than one in five epochs, which the report and we deny: "
    f"{described['random'].accuracy:.1%} and {one_worker.accuracy:.1%}."
)
print(f"The check passed: {last.accuracy:.2%} of the test images are zeros, and with")
print(f"AGGREGATE = {AGGREGATE!r} the model calls everything a zero. The mean has {mean:.1%}.")

# %% [markdown]
# ## What we found, and why
#
# The last row is a bug. The report describes an average, and its code goes on with the first
# worker's model.
#
# - **The bug hid where results looked plausible.** With random or even shards, one worker's tenth
#   of the data is a fair sample. Only the strange case gave it away.
# - **A number that is too exact is a clue.** If a result equals a property of the data, such as
#   the share of a class, look at the predictions first.
# - **The limits.** One run of each setting has no error bars. The [full
#   reproduction](../results/ece751.md) ran MNIST three times each. It found the bug in all rows
#   with ten workers.
#
# ## Exercises
#
# 1. Set `AGGREGATE = "weighted"`, which gives a model more weight the larger its loss is. The
#    report proposes that, too. Is it better than the mean by class? And with random shards?
#    Explain both.
# 2. Which test would have found the bug before the report was written? Write it in three lines:
#    it should fail for `first`, pass for `average`, and take less than a second.
# 3. Run the [whole reproduction](../how-to/experiments.md#the-ece751-report). Which of its
#    conclusions would you have drawn otherwise?
#
# ## Read on
#
# - [More workers](../how-to/more-workers.md) says how ten workers come close to one after all.
#   [ConvLSTM](../results/convlstm.md) and [Lerat](../results/lerat.md) are two more papers, run
#   again.
