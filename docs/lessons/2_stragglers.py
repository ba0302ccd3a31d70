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
# # Lesson 2: Who waits for whom?
#
# - **Question**: One machine is four times slower than the others. Must everybody wait for it?
# - **Time**: 30 minutes, of which your computer works for about one.
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
# ## The problem
#
# A round ends when its last shard is trained. So the slowest machine, the *straggler*, sets the
# pace. A *policy* is a rule that says how to treat a late shard. Downpour has these:
#
# | idea | policies |
# |---|---|
# | wait for everybody | `wait` |
# | go on without the last ones | `drop`, `backup` |
# | begin a copy of the late shard elsewhere | `late`, `clone`, `grass`, `mantri` |
# | give slow machines no shards, or different ones | `blacklist`, `wrangler`, `replace` |
# | give slow machines less to do | `rebalance`, `dylu` |
# | move the late shard, with the work done so far | `handoff` |
#
# ## Your prediction
#
# Eight machines have a shard each, and one of these runs at a quarter of its speed. A ninth
# machine stands by. A shard takes ten seconds on a healthy machine. **Write down your
# prediction**:
#
# 1. How many seconds does a round take with `wait`?
# 2. Which three of the other policies come closest to ten seconds?
# 3. Which policies pay for it, by throwing work away or by leaving examples out?
#
# The next cell has the one value to change.

# %% tags=["parameters"]
SPEED = 0.25  # of the slow machine, as a share of the others': above 0, below 1

# %% [markdown]
# ## Thirteen policies in a simulator
#
# `compare_policies` runs the real scheduler and the real policies, with a simulated clock and
# simulated machines.

# %%
machines = [1, 1, 1, 1, 1, 1, 1, SPEED, 1]  # the last one stands by
outcomes = downpour.compare_policies(machines, standbys=1, rounds=10)
outcomes.sort(key=lambda outcome: outcome.round_seconds)

print(f"{'':10} {'seconds a round':>15} {'wasted work':>12} {'left out':>9}")
for one in outcomes:
    costs = f"{max(0, one.extra_work):12.0%} {one.lost:9.0%}"
    print(f"{one.policy:10} {one.round_seconds:15.1f} {costs}")

# %% [markdown]
# *Wasted work* is the time that machines spent on results that did not count. *Left out* is the
# share of the examples that the model never saw.
#
# ## Three policies on your own machine
#
# Let us test this with two real workers. `slow` stops `worker-2` many times a second, so that it
# runs at our SPEED. First, the simulator says what it expects:

# %%
expected = downpour.compare_policies([1, SPEED], policies=["wait", "handoff", "dylu"], rounds=10)
waiting = expected[0].round_seconds
for one in expected:
    print(f"{one.policy:8} {one.round_seconds / waiting:5.0%} of the time that wait takes")

# %% [markdown]
# And now for real, with small batches that make training slow enough to watch.


# %%
def train(policy):
    """Train with a policy, on two workers of which one is slow."""
    spec = {"shards": 2, "epochs": 4, "meet": 1, "batch_size": 1, "policy": policy}
    return downpour.run(spec | {"learning_rate": 0.002}, workers=2, slow={"worker-2": SPEED})


runs = {"wait": train("wait")}

# %% alt="Timeline with wait: in each round worker-1 ends early, and waits for worker-2."
runs["wait"].timeline()

# %%
runs["handoff"] = train("handoff")

# %% alt="Timeline with handoff: within a round, shards move from worker-2 to worker-1."
runs["handoff"].timeline()

# %%
runs["dylu"] = train("dylu")

# %% alt="Timeline with dylu: after the first round, the bars of worker-2 get shorter."
runs["dylu"].timeline()

# %% [markdown]
# With `handoff`, a striped bar ends where its shard went to the other machine. With `dylu`,
# `worker-2` gets fewer steps once the manager knows its speed.

# %%
measured = {policy: run.train_seconds for policy, run in runs.items()}
steps = {policy: sum(task.steps for task in run.tasks) for policy, run in runs.items()}
models = {policy: run.model_file.read_bytes() for policy, run in runs.items()}

print(f"{'':8} {'seconds':>8} {'of wait':>8} {'steps':>6} {'accuracy':>9}  model")
for policy, run in runs.items():
    share = measured[policy] / measured["wait"]
    same = "the bytes of wait" if models[policy] == models["wait"] else "other bytes"
    print(
        f"{policy:8} {measured[policy]:8.1f} {share:8.0%} {steps[policy]:6} {run.accuracy:9.1%}"
        f"  {same}"
    )

# %% [markdown]
# Is the column "of wait" what the simulator expected? The simulator ignores the loading of files
# and other programs on your computer, so expect the order to be right, and not each number. The
# next cell checks the lesson's claim on your machine.

# %% tags=["check"]
simulated = {one.policy: one for one in outcomes}
longer = simulated["wait"].round_seconds / 10
assert longer > 1.5, (
    f"SPEED = {SPEED} makes no straggler: even if everybody waits, a round takes only {longer:.1f} "
    "times as long as without the slow machine. Choose a lower SPEED, such as 0.25."
)
assert simulated["handoff"].round_seconds < simulated["wait"].round_seconds / 1.5, (
    f"In the simulator, moving shards took {simulated['handoff'].round_seconds:.1f} s a round, "
    f"and waiting {simulated['wait'].round_seconds:.1f} s."
)
assert measured["handoff"] < measured["wait"], (
    f"On this machine, handoff took {measured['handoff']:.1f} s and wait {measured['wait']:.1f} s. "
    "Other programs probably slowed worker-1 as well; close them, and run the lesson again."
)
assert models["handoff"] == models["wait"], (
    "The model of handoff has other bytes than that of wait, although both trained the same steps."
)
assert steps["dylu"] < steps["wait"], (
    f"dylu made {steps['dylu']} steps and wait {steps['wait']}, so worker-2 did not get less to do."
)
print("The check passed: nobody has to wait, moving keeps the bytes, and dylu trains less.")

# %% [markdown]
# ## What we found, and why
#
# - **Waiting costs what the slowest machine costs**: a round takes four times as long.
# - **Dropping and shrinking change the model.** `drop`, `backup` and `dylu` leave examples out.
#   `rebalance` cuts them into other shards.
# - **Copies keep the model, and waste work.** `late`, `grass` and `mantri` train a shard twice.
# - **Moving a shard keeps both.** With `handoff`, the slow worker publishes its half-trained
#   model, and a faster one goes on from exactly there. So the model keeps its bytes, and
#   `handoff` is Downpour's default.
#
# No policy wins everywhere. On slow networks, moving a shard takes long.
#
# ## Exercises
#
# 1. Set `SPEED = 0.05`. Which policies still come close to ten seconds? Look at *wasted work*,
#    too.
# 2. Remove the machine that stands by: `machines = [1, 1, 1, 1, 1, 1, 1, SPEED]`, and
#    `standbys=0`. Which policies become as slow as `wait`, and why?
#
# ## Read on
#
# - [Lesson 3](3_asynchrony.md) does without waiting altogether.
# - [Stragglers](../how-to/stragglers.md) describes every policy, and [a
#   comparison](../results/policies.md) measures them. `downpour compare-policies ID` compares
#   them on your own run.
