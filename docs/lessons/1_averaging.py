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
# # Lesson 1: The average of five students
#
# - **Question**: Five workers each see two of ten digits. Can the average of their models read
#   all ten?
# - **Time**: 25 minutes, of which your computer works for about one.
# - **Before**: [lesson 0](0_first_run.md), for the words *worker*, *shard* and *round*.
# - **You need**: two cores and the [extras](../start/install.md) `digits,report,dashboard`; no
#   GPU, no network.

# %%
try:
    import downpour, matplotlib, sklearn, uvicorn
except ModuleNotFoundError as missing:
    extras = "pip install 'downpour-sgd[digits,report,dashboard]'"
    raise SystemExit(f"{missing.name} is not installed. Run: {extras}") from None

# %% [markdown]
# ## What averaging means
#
# A network is a long list of numbers, its *parameters*. Every shard of a round begins with the
# same list, and training changes it a little. Then the manager averages, number by number. Papers
# call it *local SGD* or *federated averaging*. It should surprise you that it works: if you
# average two essays letter by letter, you get no essay.
#
# The *split* says how to cut the examples into shards: `random` and `equal` give every shard a
# mixture of all digits. `class` gives it whole digits: with five shards, each has two of them,
# and never sees the other eight.
#
# ## Your prediction
#
# We train four times, for eight passes through the examples:
#
# | name | how |
# |---|---|
# | `alone` | `class` split, and only the model of shard 0 counts |
# | `apart` | `class` split, and the five models are averaged once in each pass through the data |
# | `mixed` | `random` split, averaged as often |
# | `often` | `class` split, averaged five times as often |
#
# **Write down your prediction**: sort the four by accuracy, after the second pass and after the
# eighth. After the *first* average of `apart`, can it read a digit that only one of its five
# models has ever seen?
#
# The next cell has the one value to change.

# %% tags=["parameters"]
SPLIT = "class"  # or "dirichlet(0.3)", "equal", "random"


# %%
def train(**fields):
    """Train on five shards, with two workers that are threads of this program: they start fast."""
    fields = {"shards": 5, "epochs": 8, "meet": 1, **fields}
    return downpour.run(fields, workers=2, on="inline")


runs = {
    "alone": train(split=SPLIT, aggregate="first"),
    "apart": train(split=SPLIT),
    "mixed": train(split="random"),
    "often": train(split=SPLIT, meet=5),
}

# %% [markdown]
# ## What happened
#
# Accuracy on images that no run has trained with, after some *epochs* (passes through the data).
# The last column counts the megabytes of models in the shared folder.

# %%
print(f"{runs['alone'].parameters:,} parameters; accuracy after epoch")
print(f"{'':6} {'1':>7} {'2':>7} {'4':>7} {'8':>7} {'MB':>7}")
for name, result in runs.items():
    after = " ".join(f"{result.epochs[epoch - 1].accuracy:7.1%}" for epoch in (1, 2, 4, 8))
    print(f"{name:6} {after} {sum(epoch.bytes for epoch in result.epochs) / 1e6:7.1f}")

# %% [markdown]
# How well three of the models read each digit:

# %% alt="Bars for ten digits: one shard reads two, the first average several, the last all."
import matplotlib.pyplot as plt

models = {
    "one shard alone": runs["alone"].rounds[-1],
    "average, epoch 1": runs["apart"].rounds[0],
    "average, epoch 8": runs["apart"].rounds[-1],
}
figure, axes = plt.subplots(1, 3, figsize=(9, 2.2), sharey=True, layout="constrained")
for axis, (title, model) in zip(axes, models.items(), strict=True):
    axis.bar(range(10), [100 * (right or 0) for right in model.class_accuracy])
    axis.set(title=title, xlabel="digit", xticks=range(10))
axes[0].set_ylabel("read correctly, %")
plt.show()

# %% [markdown]
# In the middle panel, after a single average, the model reads digits that four of its five parts
# have never seen. The next cell checks the lesson's claim on your machine.

# %% tags=["check"]
unseen = sum((right or 0) < 0.1 for right in runs["alone"].rounds[-1].class_accuracy)
assert unseen >= 5, (
    f"One shard alone taught the model {10 - unseen} of ten digits, so its examples are mixed: "
    f"SPLIT = {SPLIT!r}. The claims need shards that differ, as with SPLIT = 'class'."
)
alone, apart, mixed, often = (runs[name].epochs for name in ("alone", "apart", "mixed", "often"))
assert apart[-1].accuracy > alone[-1].accuracy + 0.2, (
    f"The average reads {apart[-1].accuracy:.0%}, hardly more than one shard's model alone, "
    f"{alone[-1].accuracy:.0%}."
)
assert mixed[1].accuracy > apart[1].accuracy + 0.1, (
    f"After two epochs, mixed shards read {mixed[1].accuracy:.0%} and unmixed ones "
    f"{apart[1].accuracy:.0%}: the split made no difference."
)
assert often[-1].accuracy > apart[-1].accuracy, (
    f"Averaging five times as often did not help: {often[-1].accuracy:.0%}, and "
    f"{apart[-1].accuracy:.0%} without."
)
print(
    "The check passed: averaging combines what shards know, and unmixed shards learn more slowly."
)

# %% [markdown]
# ## What we found, and why
#
# - **Alone, a worker learns what it sees**: two digits, so about 20 %.
# - **The average knows what its parts know**, because the parts stay close together. For small
#   moves, half of a step has about half of its effect. The average is the old model plus a fifth
#   of each shard's step.
# - **Shards that differ pull in different directions.** The longer they train apart, the more of
#   their steps cancels out: *client drift*.
# - **Averaging more often helps**, because the parts drift less far. But for every average, all
#   models travel through the network.
#
# ## Exercises
#
# 1. Set `SPLIT = "dirichlet(0.3)"`: every shard has some of many digits, in uneven amounts. Where
#    in the table do you expect `apart`? Here the check may fail. Which line of it, and why?
# 2. Change `meet=5` to 2, 10 and 20. Draw accuracy over megabytes. Where does it stop paying off?
#
# ## Read on
#
# - [Lesson 2](2_stragglers.md) asks what to do about a slow worker.
# - [Rounds](../concepts/rounds.md) and [more workers](../how-to/more-workers.md). `downpour
#   splits FILE` draws how a split cuts [your own data](../how-to/experiments.md).
# - McMahan et al., *Communication-Efficient Learning of Deep Networks from Decentralized Data*
#   (2017).
