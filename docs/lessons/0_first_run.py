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
# # Lesson 0: Kill a worker, and watch
#
# - **Question**: Two machines train one model together. One of them dies. What happens to the
#   model?
# - **Time**: 20 minutes, of which your computer works for about one.
# - **Before**: a little Python.
# - **You need**: two cores and the [extras](../start/install.md) `digits,report,dashboard`; no
#   GPU, no network.

# %%
try:
    import downpour, matplotlib, sklearn, uvicorn
except ModuleNotFoundError as missing:
    extras = "pip install 'downpour-sgd[digits,report,dashboard]'"
    raise SystemExit(f"{missing.name} is not installed. Run: {extras}") from None

# %% [markdown]
# ## Two workers, one model
#
# We train a small network to read 1,797 handwritten digits.
#
# - A **worker** is a program that trains. In a real cluster, each one has its own machine.
# - A **shard** is a part of the examples. We cut them into two, and each worker trains one.
# - A **round** begins with one model for all workers. Each worker trains its shard. Then the
#   **manager** averages the two results, and the next round begins with that average.
#
# `batch_size=1` makes training slow on purpose, so that you have time to watch.

# %%
SPEC = downpour.Spec(shards=2, epochs=6, meet=1, batch_size=1, learning_rate=0.002)

calm = downpour.run(SPEC, workers=2)
print(f"{calm.accuracy:.1%} of the test images are read correctly")

# %% [markdown]
# In the timeline, each worker has a row, and each bar is a shard in one round. The two bars of a
# round begin together, because a round waits for the previous one.

# %% alt="Timeline of two workers. In each of six rounds both train a shard, side by side."
calm.timeline()

# %% [markdown]
# ## Your prediction
#
# Now we do it again, and kill `worker-2` as soon as round 3 has begun. It gets no warning, and it
# does not come back. **Write down your prediction**:
#
# 1. The run fails, because half of the model is lost.
# 2. The run ends, with a worse model: from round 3 on, half of the examples are missing.
# 3. The run ends, later, with a model that is about as good.
# 4. The run ends, later, with *exactly the same* model.
#
# The next cell has the one value to change for experiments of your own.

# %% tags=["parameters"]
KILL = "worker-2@round3"  # another worker, another round; "worker-2@4s" means after four seconds

# %%
killed = downpour.run(SPEC, workers=2, kill=[KILL])
for change in killed.worker_changes:
    print(change.partition(":")[0])

# %% alt="Timeline of the same training. worker-2 ends in round 3, and worker-1 trains both shards."
killed.timeline()

# %% [markdown]
# The bar with the cross is the shard that `worker-2` was training when it died. Look who trains
# that shard next.
#
# You can watch the same live. In a terminal, `--dashboard` prints the address of a page:
#
# ```sh
# downpour run --shards 2 --workers 2 --epochs 6 --batch-size 1 --learning-rate 0.002 \
#     --kill worker-2@round3 --dashboard
# ```
#
# [Reading the live page](../how-to/live-page.md) explains it. In a notebook, the page below shows
# the run that just ended; "Replay" plays it again:

# %%
killed.page()

# %% [markdown]
# ## What did the crash cost?

# %%
print(f"{'':12} {'seconds':>8} {'worker-1':>9} {'worker-2':>9} {'accuracy':>9}")
for name, result in {"undisturbed": calm, "killed": killed}.items():
    trained = [task.worker for task in result.tasks]
    shards = [trained.count(worker) for worker in ("worker-1", "worker-2")]
    seconds, accuracy = result.train_seconds, result.accuracy
    print(f"{name:12} {seconds:8.1f} {shards[0]:9} {shards[1]:9} {accuracy:9.1%}")

same = calm.model_file.read_bytes() == killed.model_file.read_bytes()
print(f"\nThe files of the two models are {'the same, byte for byte' if same else 'different'}.")

# %% [markdown]
# The columns of the workers count the shards that each of them trained. The next cell checks the
# lesson's claim on your machine.

# %% tags=["check"]
assert any("was lost" in line for line in killed.worker_changes), (
    f"No worker died: KILL = {KILL!r} killed none. Name a worker and a round from 1 to 6, "
    "as in 'worker-2@round3'."
)
assert len(killed.tasks) == len(calm.tasks) == 12, (
    f"Six rounds of two shards are 12 tasks, but {len(killed.tasks)} were trained to their end."
)
assert same, (
    f"The models differ. Without the crash, {set(calm.numeric_classes)} computed them, and with it "
    f"{set(killed.numeric_classes)}: processors of different kinds round differently."
)
print("The check passed: a worker died, all work was done, and the model is the same.")

# %% [markdown]
# ## What we found, and why
#
# Prediction 4 was right: the run took longer, and the model is the same to the last bit.
#
# - **A worker owns nothing**, so its death destroys nothing. Examples, models and finished
#   results are in a folder that all machines see.
# - **A shard gives the same result wherever it is trained.** The order of its examples follows
#   from a seed in the spec, not from the worker.
#
# So you can debug a run that crashed by running it again, and compare two machines by comparing
# two files.
#
# ## Exercises
#
# 1. Set `KILL = "worker-2@round3,restart"`, so that a new process takes the place of the dead
#    one. Does the check still pass?
# 2. Set `KILL = "manager@round3"`. What do the workers do while there is no manager? Here the
#    first check fails, because no worker died. [Lesson 4](4_crashes.md) looks closer.
#
# ## Read on
#
# - [Lesson 1](1_averaging.md) asks why the average of two models is a good model at all.
# - [Why the bytes are the same](../concepts/same-bytes.md), [the
#   glossary](../concepts/glossary.md), and [demos](../how-to/demos.md) for the command line.
