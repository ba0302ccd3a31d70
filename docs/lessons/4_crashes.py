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
# # Lesson 4: Break it on purpose
#
# - **Question**: Processes die in the middle of training. What must your code do so that the
#   model still comes out the same, byte for byte? And how do you notice if it does not?
# - **Time**: 35 minutes, of which your computer works for about one.
# - **Before**: [lesson 0](0_first_run.md). You have seen a PyTorch network.
# - **You need**: two cores and the [extras](../start/install.md) `digits,report,dashboard`; no
#   GPU, no network.

# %%
try:
    import downpour, matplotlib, sklearn, uvicorn
except ModuleNotFoundError as missing:
    extras = "pip install 'downpour-sgd[digits,report,dashboard]'"
    raise SystemExit(f"{missing.name} is not installed. Run: {extras}") from None

# %% [markdown]
# ## Our own network
#
# We bring a network, because we want to break it. Workers are separate processes, so it must be
# in a file. The next cell writes one with four functions:
#
# - `healthy` makes an ordinary network.
# - `clock` multiplies its output by a number just above 1, which it takes from the clock.
# - `process` makes that number from the process ID.
# - `file` reads that number from a file beside the code, `factor.txt`.
#
# Real code does such things by accident, with an unseeded random generator, an environment
# variable or a temporary file.

# %%
import os, sys
from pathlib import Path

Path("factor.txt").write_text("1.001")
Path("lesson4.py").write_text("""
import os, time
from pathlib import Path

from torch.nn import Flatten, Linear, Module, ReLU, Sequential


def healthy():
    return Sequential(Flatten(), Linear(64, 32), ReLU(), Linear(32, 10))


class Clock(Module):
    def forward(self, x):
        return x * (1 + time.time() % 1 / 100)


def clock():
    return healthy().append(Clock())


class Process(Module):
    def forward(self, x):
        return x * (1 + os.getpid() % 1000 / 100_000)


def process():
    return healthy().append(Process())


class File(Module):
    def forward(self, x):
        return x * float(Path(__file__).with_name("factor.txt").read_text())


def file():
    return healthy().append(File())
""")
sys.path.append(os.getcwd())
downpour.allow("lesson4")  # no spec may name code that nobody allowed

# %% [markdown]
# In each of five rounds, each of two workers trains two shards, and the **manager** averages the
# four models. Two models can differ and still read the same images correctly. So we compare the
# files of the models by their **SHA-256**, a fingerprint of their bytes.

# %%
import hashlib, logging

logging.getLogger("downpour").setLevel(logging.ERROR)  # we know that processes die here


def train(network, kill=()):
    spec = {"model": f"lesson4:{network}", "shards": 4, "epochs": 5, "meet": 1, "batch_size": 1}
    return downpour.run(spec | {"learning_rate": 0.003}, workers=2, kill=kill)


def fingerprint(result):
    return hashlib.sha256(result.model_file.read_bytes()).hexdigest()[:12]


# %% [markdown]
# ## Your prediction
#
# We train `healthy` twice. The second time we kill a worker in round 2, and the *manager* in
# round 3. Downpour restarts both. **Write down your prediction**: which of these differ between
# the two runs?
#
# 1. the seconds that training took
# 2. the accuracy
# 3. the fingerprint of the model
#
# Then the same for `clock`, for `process` and for `file`.

# %% tags=["parameters"]
KILL = ["worker-1@round2,restart", "manager@round3"]  # one or more, in any of the rounds 1 to 5

# %% [markdown]
# ## Kill anything

# %%
calm = train("healthy")
killed = train("healthy", KILL)

for change in killed.worker_changes:
    print(change.partition(":")[0])

# %% alt="Timeline of two workers in five rounds. A dashed red line marks each kill; a cross marks the shard that worker-1 lost."
killed.timeline()

# %% [markdown]
# Each dashed red line is a kill. The bar with a cross is the work that was lost with the worker.
# Did the workers stop when the manager died?


# %%
def compare(**runs):
    print(f"{'':12} {'seconds':>8} {'shards lost':>12} {'accuracy':>9}  SHA-256")
    for name, run in runs.items():
        lost = sum(not failure.blameless for failure in run.failures)
        seconds, accuracy = run.train_seconds, run.accuracy
        print(f"{name:12} {seconds:8.1f} {lost:12} {accuracy:9.1%}  {fingerprint(run)}…")


compare(undisturbed=calm, killed=killed)

# %% [markdown]
# ## Faults that are caught
#
# `clock` has no bug that you would see in its accuracy. Let us train it.


# %%
def refusal(network):
    try:
        train(network)
    except downpour.DownpourError as error:
        return str(error).partition("; see ")[0]


refused = {"clock": refusal("clock")}
print(refused["clock"])

# %% [markdown]
# No shard was trained. Before the first worker gets one, the manager takes a few steps on its
# own, *twice*, and compares all the numbers.
#
# Will this find `process` as well? Think of where both of its tries happen.

# %%
refused["process"] = refusal("process")
print(refused["process"])

# %% [markdown]
# The manager found nothing, because it tries twice *in one process*. But each worker repeats the
# first steps before its first task, and compares their checksum with the manager's. So a *worker*
# refused it.
#
# ## A fault that slips through
#
# Now `file`. All processes read the same file, but we change it between our two runs.

# %%
faulty_calm = train("file")
Path("factor.txt").write_text("1.002")
faulty_killed = train("file", KILL)
Path("factor.txt").write_text("1.001")
compare(undisturbed=faulty_calm, killed=faulty_killed)

# %% [markdown]
# No check found anything, because all processes *of one run* agreed. Only the fingerprints give
# it away. Who is to blame: the kills, or our code? `downpour.replay` trains a run once more, and
# stops at the first file whose bytes differ.

# %%
replays = {"healthy": downpour.replay(killed), "file": downpour.replay(faulty_killed)}
for name, replay in replays.items():
    same = f"{replay.compared} checksums compared, all agree"
    print(f"{name}: {replay.difference or same}")

# %% [markdown]
# The first difference is in round 1, *before* anything was killed. So the kills are innocent. The
# next cell checks the lesson's claim on your machine.

# %% tags=["check"]
happened = [change for change in killed.worker_changes if "on purpose" in change]
assert len(happened) == len(KILL), (
    f"KILL = {KILL!r} names {len(KILL)} processes to kill, and {len(happened)} were killed before "
    "training ended. There are rounds 1 to 5."
)
assert fingerprint(calm) == fingerprint(killed), (
    f"The crash changed the model. Replayed, the run says: {replays['healthy']}. Without the crash, "
    f"{set(calm.numeric_classes)} computed, and with it {set(killed.numeric_classes)}."
)
for network, said in (("clock", "in two trainings"), ("process", "in another process")):
    assert f"different bytes {said}" in (refused[network] or ""), (
        f"Downpour missed the fault of {network}. It said: {refused[network]!r}."
    )
assert fingerprint(faulty_calm) != fingerprint(faulty_killed), (
    "file came to the same bytes twice, although its factor had changed in between."
)
first = replays["file"].difference
assert first and first.task, (
    "The replay of file agrees with the run, although its factor is another one again: "
    "does the network still read factor.txt?"
)
print("The check passed: crashes changed no byte, and each fault of ours was found.")

# %% [markdown]
# ## What we found, and why
#
# Crashes cost seconds, and not a single bit. One line of our code was enough to lose that.
#
# - **A task must be a function of its place.** A step may depend on the model, the examples and
#   the place in the training (round, shard, step), and on nothing else. Downpour seeds all random
#   generators from that place: `torch.rand` in a loss repeats, and `time.time()` does not.
# - **The manager writes before it acts**, into a journal on disk. A new manager reads it, and
#   goes on from there.
# - **One check is not enough.** Trying twice in one process finds clocks and counters, and
#   another process finds what differs between processes. Only comparing fingerprints finds
#   everything, and it comes last.
#
# ## Exercises
#
# 1. Set `KILL` so that as much work as possible is lost and the run still ends. Does anything
#    change but the seconds? Why does Downpour refuse to kill both workers without `,restart`?
# 2. Write a fifth class, whose fault neither the manager's check nor the fingerprints of *two*
#    runs find, but a replay on another computer would. (Restart the kernel after you change the
#    file.)
# 3. Take `torch.rand(())` as the factor in `clock`. Is it refused now? Explain why.
#
# ## Read on
#
# - [Replay](../how-to/replay.md), [your own training](../how-to/your-own-training.md), and [what
#   you can kill](../how-to/demos.md#kills).
