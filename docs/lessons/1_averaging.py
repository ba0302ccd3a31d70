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
# - **Question**: Five workers each see two of ten digits. Can the average of their models read all
#   ten?
# - **Time**: 25 minutes, of which your computer works for about one.
# - **Before**: [lesson 0](0_first_run.md), for the words *worker*, *shard* and *round*.
# - **You need**: two cores, `pip install 'downpour-sgd[digits,report,dashboard]'`, no GPU and no
#   network.

# %%
try:
    import downpour, matplotlib, sklearn, uvicorn
except ModuleNotFoundError as missing:
    extras = "pip install 'downpour-sgd[digits,report,dashboard]'"
    raise SystemExit(f"{missing.name} is not installed. Run: {extras}") from None

# %% [markdown]
# ## What averaging means
#
# A network is a long list of numbers, its *parameters*. Every shard of a round begins with the same
# list, and training changes it a little. Then the manager averages, number by number:
#
# > next model = the sum of the five models / 5
#
# That is all. Papers call it *local SGD* or *federated averaging*. It should surprise you that it
# works: if you average two essays letter by letter, you get no essay.
#
# Who sees which examples matters a lot. So a training's description, its *spec*, names a *split*: a
# way to cut the examples into shards.
#
# - `random`: every shard gets a mixture of all ten digits.
# - `equal`: every shard gets about the same number of each digit.
# - `class`: every shard gets whole digits. With five shards, each has two of them, and never sees
#   the others. Hospitals with different patients are like that, and phones with different owners.
#
# ## Your prediction
#
# We train four times. Each time, training goes through the same examples eight times:
#
# | name | how |
# |---|---|
# | `alone` | `class` split, and only the model of shard 0 counts |
# | `apart` | `class` split, and the five models are averaged once in each pass through the data |
# | `mixed` | `random` split, averaged as often |
# | `often` | `class` split, averaged five times as often |
#
# **Write down your prediction**: sort the four by accuracy, after the second pass and after the
# eighth. How many percent will `alone` reach? And after the *first* average of `apart`, can it read
# a digit that only one of its five models has ever seen?
#
# The next cell has the only value that you have to change for experiments of your own.

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
# Each pass through the data is an *epoch*. This is the accuracy on images that no run has trained
# with, after some of the epochs. The last column counts the megabytes of models that workers and
# manager wrote into the shared folder.

# %%
print(f"{runs['alone'].parameters:,} parameters; accuracy after epoch")
print(f"{'':6} {'1':>7} {'2':>7} {'4':>7} {'8':>7} {'MB':>7}")
for name, result in runs.items():
    after = " ".join(f"{result.epochs[epoch - 1].accuracy:7.1%}" for epoch in (1, 2, 4, 8))
    print(f"{name:6} {after} {sum(epoch.bytes for epoch in result.epochs) / 1e6:7.1f}")

# %% [markdown]
# And this is how well three of the models read each digit: the model of one shard, and the averages
# after the first and after the last epoch of `apart`.

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
# Look at the middle panel: after a single average, the model reads digits that four of its five
# parts have never seen.
#
# The next cell checks what this lesson claims. If something else happened on your machine, it stops
# and says what.

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
# - **The average knows what its parts know**, because the parts stay close together. They begin
#   with the same parameters, and one epoch moves them only a little. For such small moves a network
#   behaves almost like a straight line: half of a step has about half of its effect. The average is
#   the old model plus a fifth of each shard's step, so a bit of every lesson survives.
# - **Shards that differ pull in different directions.** Each of them makes its own digits likelier
#   and all others less likely. The longer they train apart, the more of their steps cancels out in
#   the average. Papers call that *client drift*.
# - **Averaging more often helps**, because the parts drift less far between two averages. The last
#   column has the price: for every average, all models travel through the network.
#
# ## Exercises
#
# 1. Set `SPLIT = "dirichlet(0.3)"`: every shard has some of many digits, in uneven amounts.
#    Where in the table do you expect `apart`? Here the check may fail. Which line of it, and why?
# 2. Change `meet=5` to 2, 10 and 20. Draw accuracy over megabytes. Where does it stop paying off?
#
# ## Read on
#
# - [Lesson 2](2_stragglers.md) asks what to do about a slow worker.
# - [Rounds](../concepts/rounds.md) says when the manager averages, and which updates.
# - [More workers](../how-to/more-workers.md) measures how many averages ten workers need, and what
#   else they need.
# - `downpour splits FILE` draws how a split cuts your own data
#   ([more](../how-to/experiments.md)).
# - McMahan et al., *Communication-Efficient Learning of Deep Networks from Decentralized Data*
#   (2017), is the paper that made this average popular.
