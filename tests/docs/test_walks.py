"""The pages' commands do what they say: a reader types them, and each ends well."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.docker.conftest import succeeds
from tests.docs.commands import shown
from tests.docs.pages import BESIDE, ROOT, WRITTEN, Page
from tests.docs.walks import Walk

SMALL = """
dataset = "digits"
model = "mlp"
shards = 4
epochs = 4
learning_rate = 0.05
keep_best = "accuracy"
validation = 0.1
"""
GRID = 'name = "splits"\nworkers = 2\nsplit = ["random", "class"]\n' + SMALL
SEARCH = GRID.replace("splits", "rates").replace('split = ["random", "class"]\n', "")
SEARCH += "[search]\ntrials = 3\nlearning_rate = { low = 0.01, high = 0.1 }\n"
LAB = """
import torch
from downpour import Task


class Lab(Task):
    def __init__(self, file="old.csv"):
        self.rows = torch.tensor([[float(n) for n in row.split(",")] for row in open(file)])

    def model(self):
        return torch.nn.Linear(1, 1)

    def examples(self, part):
        return torch.utils.data.TensorDataset(self.rows[:, :1], self.rows[:, 1:])

    def loss(self, model, batch):
        return ((model(batch[0]) - batch[1]) ** 2).mean()
"""
MAKE_INPUTS = f"""
cat >lab.py <<'END'
{LAB}END
cat >lab.toml <<'END'
task = "lab:Lab"
epochs = 2
shards = 2
END
mkdir photos
python - <<'END'
import numpy as np
from PIL import Image
from sklearn.datasets import load_digits
x, y = load_digits(return_X_y=True)
x = x.reshape(-1, 8, 8, 1).astype(np.uint8)
np.save("three.npy", x[:3])
np.savez("lab.npz", x_test=x[:50], y_test=y[:50])
Image.fromarray(x[0, :, :, 0]).save("photos/zero.png")
rows = "".join(f"{{n}},{{2 * n}}\\n" for n in range(40))
for name in ("old.csv", "new.csv"):
    open(name, "w").write(rows)
END
"""
A_CLUSTER = """
: >manager.log; downpour manager >manager.log 2>&1 & serves manager.log
downpour worker &
"""
A_STOPPED_RUN = """
downpour run small.toml --epochs 400 &
until compgen -G 'shared_dir/experiments/*/model-*'; do kill -0 $!; sleep 0.1; done
kill $!; wait $! || [ $? = 143 ]
stopped=$(newest)
"""
ANOTHER_CLUSTER = "kill $(jobs -p) && wait; "
HERE = {"/mnt/shared": "$HOME/shared", "/lab/shared": "$HOME/shared"}
FIRST = {"--manager first": "--manager localhost", "first:9090": "localhost:9090"}
HAS_A_MANAGER = {"downpour manager": "the reader has one already"}
DEMOS = {"downpour demo stragglers": "tests/experiments/test_demos.py runs it"}

WALKS = {
    "docs/start/first-run.md": Walk(
        before="downpour run small.toml",
        left_out={
            "make run": "installs; `before` trains instead",
            ". .venv": "the commands are on the path",
        },
    ),
    "docs/start/own-training.md": Walk(stands_for=HERE | FIRST),
    "docs/how-to/your-own-training.md": Walk(
        stands_for=HERE | {"~/project": ".", "ALLOW=lab": "ALLOW=regression"}
    ),
    "docs/how-to/use-models.md": Walk(
        before=MAKE_INPUTS
        + "downpour run lab.toml\nlab=$(newest)\ncp small.toml other.toml\ndownpour run small.toml",
        stands_for={
            r"ID(?=.* --allow lab)": "$lab",
            "weights.safetensors": "model/model.safetensors",
        },
        left_out={"downpour submit --resume": "tests/experiments/trained_model does"},
    ),
    "docs/how-to/recovery.md": Walk(
        before=A_STOPPED_RUN,
        stands_for=HERE
        | {"^downpour list": ANOTHER_CLUSTER + "downpour list", "resume ID": "resume $stopped"},
        left_out={
            "downpour demo": "tests/experiments/test_demos.py runs it",
            "downpour manager --shared /mnt/shared --host 0.0.0.0 --make-token --successor": (
                "waits for the death of the other; tests/chaos kills it"
            ),
        },
    ),
    "docs/how-to/stragglers.md": Walk(left_out=DEMOS),
    "docs/how-to/wrong-machines.md": Walk(
        before="downpour run small.toml\nrun=$(newest)", stands_for={r"experiment-[\w-]+": "$run"}
    ),
    "docs/how-to/demos.md": Walk(left_out=DEMOS),
    "docs/how-to/experiments.md": Walk(
        before="downpour run small.toml",
        stands_for={"grid FILE": "grid grid.toml", "results/NAME": "results/splits"},
        left_out={
            "downpour grid FILE --manager": "tests/experiments/studies has a manager elsewhere",
            "downpour grid examples/papers": "takes minutes",
            "downpour report results/lerat": "reports what takes minutes",
            "downpour report results/convlstm": "reports what takes minutes",
            "python examples/papers": "reads what takes minutes",
            "export DOWNPOUR_ALLOW": "is for the papers",
        },
    ),
    "docs/how-to/tuning.md": Walk(
        stands_for={"tune FILE": "tune search.toml", "results/NAME": "results/rates"},
        left_out={"downpour tune FILE --manager": "tests/experiments/studies has a manager"},
    ),
    "docs/how-to/monitoring.md": Walk(
        before=A_CLUSTER + "printf '#!/bin/sh\\ncat >>news\\n' >notify.sh; chmod +x notify.sh\n"
        "downpour submit small.toml --watch\n"
        "downpour grid grid.toml",
        stands_for={
            "grid FILE": "grid grid.toml",
            "tune FILE": "tune search.toml",
            "--worker worker-2": "--worker worker-1",
        },
        left_out=HAS_A_MANAGER
        | {
            "downpour dashboard --shared s3": "tests/files/objects has a bucket",
            "downpour dashboard --host": "tests/show/dashboard has a token",
            "ssh": "needs another machine",
            "downpour logs --since 2h | grep": "finds nothing here",
            "tensorboard": "a program of others",
            "downpour run FILE --log mlflow": "tests/show/loggers has a server",
            "downpour run FILE --log csv:log.csv --log trackio": "trackio may be missing",
            "wandb": "a program of others",
            "downpour grid FILE --on-event": "calls a server on the internet",
        },
    ),
    # Long ones, so that the one that is paused still waits when it is prioritized.
    "docs/how-to/queue.md": Walk(
        before=A_CLUSTER + "downpour submit small.toml --epochs 4000\nrun=$(newest)",
        stands_for={"submit FILE": "submit small.toml --epochs 4000", r" ID\b": " $run"},
    ),
    "docs/how-to/security.md": Walk(
        stands_for=HERE
        | FIRST
        | {
            "certs first,10.0.0.5,": "certs first,",
            "^rm ": ANOTHER_CLUSTER + "rm ",
            "^export DOWNPOUR_TLS_CERT=certs/first": ANOTHER_CLUSTER
            + "export DOWNPOUR_TLS_CERT=certs/first",
        }
    ),
    "docs/how-to/which-cluster.md": Walk(
        before="export DOWNPOUR_SHARED=$HOME/shared" + A_CLUSTER,
        stands_for=HERE | {"spec.toml": "small.toml"},
    ),
    "docs/how-to/replay.md": Walk(
        before="downpour run small.toml", stands_for={r"experiment-[\w-]+": "ID"}
    ),
    "docs/how-to/live-page.md": Walk(
        before="downpour run small.toml", left_out={"python -m pytest": "is a test"}
    ),
    "docs/how-to/clean-up.md": Walk(before="downpour run small.toml"),
    "docs/how-to/fewer-bytes.md": Walk(),
    "docs/how-to/inside.md": Walk(),
    "docs/how-to/launchers.md": Walk(left_out={"downpour run FILE --on ssh": "tests/cluster/ssh"}),
    "docs/concepts/asynchronous.md": Walk(),
    "docs/concepts/same-bytes.md": Walk(
        stands_for={r"sha256sum (.*)": r"test $(sha256sum \1 | cut -c1-64 | uniq | wc -l) = 1"}
    ),
    "docs/concepts/simulator.md": Walk(stands_for={"2000": "20"}),
}
ELSEWHERE = {
    "docs/index.md": "the demo of other pages; tests/experiments/test_demos.py runs it",
    "docs/concepts/forecasts.md": "trains for minutes; tests/predictor has a smaller training",
    "docs/how-to/compose.md": "needs Docker, as tests/cluster/docker has it",
    "docs/how-to/extend.md": "installs; tests/base/test_names.py does as if it had",
    "docs/how-to/gpu-pcs.md": "needs hosts with ssh, as tests/cluster/ssh has them",
    "docs/how-to/lab-pcs.md": "needs hosts with ssh, as tests/cluster/ssh has them",
    "docs/how-to/lightning-and-trainer.md": "needs Lightning: tests/examples/test_ports.py",
    "docs/how-to/many-workers.md": "simulates for minutes; tests/downpour_lab/test_capacity.py",
    "docs/how-to/more-workers.md": "needs MNIST, as tests/cluster/docker has it",
    "docs/how-to/object-stores.md": "needs a bucket, as tests/files/objects has it",
    "docs/how-to/placement.md": "needs Slurm, as tests/cluster/slurm has it",
    "docs/how-to/large-data.md": "installs, and needs a bucket: tests/files/objects/test_blocks.py",
    "docs/how-to/ray.md": "needs a Ray cluster, as tests/cluster/ray_cluster has it",
    "docs/how-to/slurm.md": "needs Slurm, as tests/cluster/slurm has it",
    "docs/results/convlstm.md": "takes minutes; tests/experiments/studies has a smaller one",
    "docs/results/ece751.md": "takes minutes; tests/experiments/studies has a smaller one",
    "docs/results/lerat.md": "takes minutes; tests/experiments/studies has a smaller one",
    "docs/results/policies.md": "takes minutes, and traces",
    "docs/start/install.md": "installs; `make release` does it with the wheel",
}
"""Pages whose commands are not typed here, and what does instead."""
PAGES = {page.name: page for page in [*WRITTEN, *BESIDE] if "/lessons/" not in page.name}


def test_a_reader_walks_through_every_page_with_commands() -> None:
    """Or a reason says what else runs them."""
    with_commands = {name for name, page in PAGES.items() if shown(page)}
    assert with_commands == WALKS.keys() | ELSEWHERE.keys()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A reader's folder: the examples of the repository, a small spec, a grid and a search."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    texts = {"small.toml": SMALL, "grid.toml": GRID, "search.toml": SEARCH}
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


ALONE = [
    "unshare",
    "--map-root-user",
    "--net",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
    "sh",
    "-c",
    'ip link set lo up && exec "$@"',
    "-",
]
"""Without a network: the ports of a page are free, and it needs nothing from elsewhere."""


def environment(home: Path) -> dict[str, str]:
    """Return a new user's: an empty home, and the commands on the path."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DOWNPOUR_")}
    return kept | {"HOME": str(home), "PATH": path, "WANDB_MODE": "offline"}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", WALKS)
def test_every_command_of_a_page_ends_well(name: str, folder: Path) -> None:
    """From the first to the last, as a reader types them."""
    if not succeeds(*ALONE, "true"):
        pytest.skip("the pages' ports need a network namespace, and this user may not make one")
    home = folder / "home"
    home.mkdir()
    page: Page = PAGES[name]
    script = WALKS[name].script(page)
    walked = subprocess.run(
        [*ALONE, "bash", "-c", script],
        cwd=folder,
        env=environment(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert walked.returncode == 0, f"{name}\n{walked.stdout[-4000:]}"
