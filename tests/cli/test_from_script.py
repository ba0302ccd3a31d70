"""`downpour init --from train.py`: the task that a script amounts to trains as the script does."""

import json
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.transforms import RandomHorizontalFlip

from downpour.files.spec_file import read_spec
from downpour.learning.tasks.ported import MARK, Conversion
from tests.cli.conftest import Downpour
from tests.learning.datasets.conftest import write_idx
from tests.learning.tasks.porting import begun, loaded, spec_of

pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument")

SCRIPTS = Path(__file__).parent / "scripts"
WHOLE = ("digits_main", "digits_flat", "photos", "slices")
"""Scripts that are converted without anything left to do."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Add numbers in the order in which a worker adds them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all scripts and their data, in which commands run."""
    for script in SCRIPTS.iterdir():
        (tmp_path / script.stem).write_text(script.read_text())
    write_idx(tmp_path / "data" / "MNIST", count=400)
    draw = np.random.default_rng(3)
    for number in range(48):
        image = tmp_path / f"photos/{'train' if number % 4 else 'val'}/{number % 3}/{number}.png"
        image.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(image)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("digits_main", "photos", *(f"{name}_task" for name in WHOLE)):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def losses_of(script: str, count: int, parts: int, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Run a script for `count` steps, each of `parts` batches; return the loss of each step."""
    losses: list[float] = []
    backward: Any = torch.Tensor.backward
    made = DataLoader.__init__

    def recorded(loss: torch.Tensor, *given: Any) -> None:
        losses.append(loss.item())
        if len(losses) == count * parts:
            raise StopIteration
        backward(loss, *given)

    def in_order(loader: Any, *given: Any, **options: Any) -> None:
        made(loader, *given, **{**options, "shuffle": False})

    monkeypatch.setattr(torch.Tensor, "backward", recorded)
    monkeypatch.setattr(DataLoader, "__init__", in_order)
    monkeypatch.setattr(sys, "argv", [script])
    with torch.random.fork_rng(), pytest.raises(StopIteration):
        runpy.run_path(f"{script}.py", run_name="__main__")
    monkeypatch.setattr(torch.Tensor, "backward", backward)
    return [sum(losses[first : first + parts]) for first in range(0, len(losses), parts)]


@pytest.mark.parametrize("name", WHOLE)
def test_the_first_steps_have_the_losses_of_the_script(
    folder: Path, downpour: Downpour, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """In one shard and the same order, without the draws that Downpour seeds in another way."""
    outcome = downpour("init", "--from", f"{name}.py")
    assert (outcome.status, outcome.err) == (0, "")
    assert MARK not in outcome.out + Path(f"{name}_task.py").read_text()
    monkeypatch.setattr(torch.nn.Dropout, "forward", lambda _, x: x)
    monkeypatch.setattr(RandomHorizontalFlip, "forward", lambda _, x: x)
    monkeypatch.setenv("DOWNPOUR_ALLOW", f"{name}_task")
    said = read_spec(Path(f"{name}_task.toml"))
    fields = {**said.model_dump(exclude_unset=True), "order": "given"}
    spec = spec_of(**fields)
    task = loaded(spec, folder)
    training = begun(task, task.network(), 0)
    found, total = [], 0.0
    for _ in range(3):
        training.advance(1)
        found.append(training.mean_loss * training.samples - total)
        total += found[-1]
    found = [loss / spec.batch_size for loss in found]
    expected = losses_of(name, 3, spec.accumulate, monkeypatch)
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.usefixtures("folder", "forked_clusters")
def test_run_trains_what_was_written(downpour: Downpour, name: str) -> None:
    """By the command that was printed."""
    last = downpour("init", "--from", f"{name}.py").out.splitlines()[-1]
    assert last == f"downpour run {name}_task.toml"
    brief = ("--epochs", 1, "--train-limit", 16, "--test-limit", 8, "--workers", 1)
    outcome = downpour("run", f"{name}_task.toml", *brief, "--json")
    assert outcome.status == 0, outcome
    [epoch] = json.loads(outcome.out)["rounds"]
    assert epoch["test_loss"] > 0
    assert 0 <= epoch["accuracy"] <= 1


@pytest.mark.usefixtures("folder")
def test_the_rest_is_a_checklist_with_lines(downpour: Downpour) -> None:
    """A GAN's networks, examples and optimizers are found; its steps stay to be written."""
    outcome = downpour("init", "--from", "gan.py")
    assert outcome.out == (
        "line 34: Generator().to(): left out: Downpour moves networks and batches\n"
        f"line 13: {MARK}: examples() must return others for 'test'; now they are the same\n"
        f"line 41: {MARK}: step() must train the networks on a batch, as the script's loop does\n"
        f"line 42: {MARK}: loss() must return the loss of a batch of test examples\n"
        "downpour run gan_task.toml\n"
    )
    made = runpy.run_path("gan_task.py")["Training"]()
    networks = made.model()
    optimizers = made.optimizer(made.groups(networks))
    assert list(optimizers) == ["optimizerG", "optimizerD"]
    assert len(made.examples("train")) == 400
    text = Path("gan_task.py").read_text()
    assert "        #     g_loss.backward()\n" in text
    assert text.count("# line ") == 3


def test_other_styles_are_followed_as_far_as_they_go(tmp_path: Path) -> None:
    """Settings in a class, a loader under a progress bar, and what another scheduler needs.

    A call may have the name of a module of torch, as `wandb.init` has.
    """
    script = """
import torch
from tqdm import tqdm
from torch.optim.lr_scheduler import OneCycleLR
class CFG:
    epochs = 2 * 3
    batch = 16
cfg = CFG()
wandb.init(project="mine")
model = torch.nn.DataParallel(torch.nn.Linear(4, 1).cuda())
if torch.cuda.is_available():
    model = model.cuda()
else:
    print("slow")
for part in model.parameters():
    part.requires_grad = True
opt = torch.optim.SGD(params=model.parameters(), lr=0.1, nesterov=True, momentum=0.5)
data = torch.utils.data.TensorDataset(torch.ones(64, 4))
with tqdm(torch.utils.data.DataLoader(data, cfg.batch, sampler=Mine())) as bar:
    sched = OneCycleLR(opt, 0.1, total_steps=99)
    hidden = torch.zeros(1)
    for epoch in range(cfg.epochs):
        for step, (x,) in enumerate(bar):
            x = x.to("cuda", torch.float32)
            hidden = hidden + model(x).mean()
            hidden.backward()
            opt.step()
            sched.step()
"""
    found = Conversion(script, tmp_path / "train.py")
    assert "is_available" not in found.code
    assert found.fields == {
        "epochs": 6,
        "batch_size": 16,
        "last_batch": "rest",
        "optimizer": "sgd",
        "learning_rate": 0.1,
        "momentum": 0.5,
        "nesterov": True,
    }
    assert [line.partition(": ")[2][:24] for line in found.checklist] == [
        "wandb.init(): left out: ",
        "torch.nn.DataParallel():",
        "torch.nn.Linear(4, 1).cu",
        f"{MARK}: sampler: set batch",
        f"{MARK}: examples() must re",
        f"{MARK}: OneCycleLR: set sc",
        f"{MARK}: hidden goes from b",
    ]


def test_a_loop_that_is_not_found_leaves_all_methods_to_write(tmp_path: Path) -> None:
    """As one in a class; the file is Python nevertheless, and says so."""
    script = """
class Trainer:
    def fit(self):
        for x in self.loader:
            self.model(x).mean().backward()
Trainer().fit()
"""
    found = Conversion(script, tmp_path / "my train.py")
    what = "be written by hand, because no function of the script leads to its loop"
    methods = ("model", "examples", "loss")
    assert found.checklist == [f"line 5: {MARK}: {method}() must {what}" for method in methods]
    assert (found.name, found.fields) == ("my_train_task", {})
    assert found.code.count("raise NotImplementedError\n") == 3


def test_permuted_slices_are_shuffled_batches(tmp_path: Path) -> None:
    """Of the tensors that a loop would make of each slice."""
    script = """
import torch
from torch.optim import Adam
x, y = load()
net = torch.nn.Linear(4, 2)
opt = Adam(net.parameters())
for epoch in range(3):
    order = torch.randperm(len(x))
    for i in range(0, len(x), 16):
        now = order[i:i + 16]
        loss = (net(torch.from_numpy(x[now])) - y[now]).square().mean()
        loss.backward()
        opt.step()
"""
    found = Conversion(script, tmp_path / "train.py")
    assert found.fields["batch_size"] == 16
    assert "order" not in found.fields
    assert "return torch.utils.data.TensorDataset(y, torch.from_numpy(x))" in found.code
    assert "loss = (net(x_batch) - y_batch).square().mean()" in found.code


def test_lines_of_what_is_missing_are_those_of_the_script(tmp_path: Path) -> None:
    """An argument without default, a rate from a call, and examples that a loop draws."""
    script = """
import argparse
import torch
parser = argparse.ArgumentParser()
parser.add_argument("data")
args = parser.parse_args()
net = torch.nn.Linear(4, 2)
data = torch.load(args.data)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
rates = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 100, eta_min=least())
for step in range(100):
    x = data[torch.randint(9, (8,))]
    net(x).mean().backward()
    opt.step()
    rates.step()
"""
    found = Conversion(script, tmp_path / "train.py")
    whole = "examples() must return the examples of 'train' or 'test', of which loss() gets a batch"
    assert [one for one in found.checklist if MARK in one] == [
        f"{MARK}: epochs follows from no constant; set it in the spec",
        f"{MARK}: final_rate follows from no constant; set it in the spec",
        f"line 5: {MARK}: data has no default: set it in the task",
        f"line 11: {MARK}: {whole}",
        f"line 12: {MARK}: loss() must take its examples from that batch",
    ]


@pytest.mark.parametrize(
    ("text", "words", "accepted"),
    [
        ("x = (1", (), "from = 'train.py': must be a Python script (line 1: '(' was never closed)"),
        (
            "print('loss')\n",
            (),
            "from = 'train.py': has no training loop: nothing in it calls backward()",
        ),
        (
            "loss.backward()\n",
            ("--template", "lora"),
            "template = 'lora': --from brings its own task; leave out --template",
        ),
        (
            None,
            (),
            "from = 'train.py': must be a Python script (No such file or directory)",
        ),
    ],
)
def test_bad_input_is_refused_in_a_line(
    refused: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str | None,
    words: tuple[str, ...],
    accepted: str,
) -> None:
    """And nothing is written."""
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path("train.py").write_text(text)
    assert refused("init", "--from", "train.py", *words) == accepted
    assert not Path("train_task.py").exists()


@pytest.mark.usefixtures("folder")
def test_what_was_written_is_never_overwritten(
    refused: Callable[..., str], downpour: Downpour
) -> None:
    """One of both files is enough to refuse."""
    Path("gan_task.toml").write_text("mine")
    assert "already has gan_task.toml" in refused("init", "--from", "gan.py")
    assert not Path("gan_task.py").exists()
    assert downpour("init", "elsewhere", "--from", "photos.py").status == 0
    assert "def build_model(" in Path("elsewhere/photos_task.py").read_text()
