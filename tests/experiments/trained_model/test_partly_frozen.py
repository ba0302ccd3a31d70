"""A network of which a part is never trained: each of its files is enough to load all of it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import downpour
from downpour.base.errors import SpecError
from downpour.experiments.locating import find
from downpour.experiments.trained_model import export
from downpour.files.store.model_files import read_model
from downpour.learning.allowlist import FOLDERS, VARIABLE
from tests.experiments.trained_model.conftest import run_here

pytestmark = pytest.mark.slow

CODE = """
import json
from pathlib import Path

import torch
from torch import nn

from downpour import Task


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.body(x))

    def save_pretrained(self, folder):
        Path(folder).mkdir()
        Path(folder, "config.json").write_text(json.dumps({"kind": "net"}))


class Partly(Task):
    def model(self):
        return Net()

    def examples(self, part):
        return torch.eye(4).repeat(8, 1)

    def loss(self, model, batch):
        return (model(batch) - 1).square().mean()
"""


@pytest.fixture(scope="module", autouse=True)
def _allowed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Its code."""
    folder = tmp_path_factory.mktemp("partly")
    (folder / "partly_frozen.py").write_text(CODE)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(VARIABLE, "partly_frozen")
        patched.setenv(FOLDERS, str(folder))
        yield


@pytest.fixture(scope="module")
def result(shared: Path, _allowed: None) -> downpour.Result:
    """A run of it."""
    spec = downpour.Spec(
        task="partly_frozen:Partly", shards=2, epochs=2, snapshot_every=0.0, keep_models=3
    )
    return run_here(spec, shared)


def test_versions_and_adapters_load_with_what_was_frozen(
    result: downpour.Result, shared: Path
) -> None:
    """The frozen part lies beside them, once."""
    folder = shared / "experiments" / result.experiment
    whole = downpour.load_model(result, shared=shared).state_dict()
    assert load_file(folder / "adapter.safetensors").keys() == {"head.weight", "head.bias"}
    adapted = downpour.load_model(folder / "adapter.safetensors").state_dict()
    assert all(torch.equal(whole[name], adapted[name]) for name in whole)
    [version] = folder.glob("model-000001-*")
    first = downpour.load_model(f"{result.experiment}/{version.name}", shared=shared).state_dict()
    assert torch.equal(first["body.weight"], whole["body.weight"])
    assert not torch.equal(first["head.weight"], whole["head.weight"])


def test_an_experiment_begins_from_a_version_as_a_whole(
    result: downpour.Result, shared: Path
) -> None:
    """Its frozen part comes with it, and the checksum is of both."""
    folder = shared / "experiments" / result.experiment
    [version] = folder.glob("model-000002-*")
    spec = downpour.Spec.make({**result.spec, "init_from": f"{result.experiment}/{version.name}"})
    after = run_here(spec.replace(seed=5, epochs=1), shared)
    both = [downpour.load_model(one, shared=shared).state_dict() for one in (result, after)]
    assert torch.equal(both[0]["body.weight"], both[1]["body.weight"])
    alone = read_model(version, "v", None, field="f").checksum
    assert after.spec["init_checksum"] == alone


def test_what_was_trained_must_be_in_the_file(
    result: downpour.Result, shared: Path, tmp_path: Path
) -> None:
    """A network with a part as drawn would be a wrong one; what was frozen is as it was drawn."""
    state = load_file(str(result.model_file))
    spec = downpour.Spec.make(result.spec)
    for left_out, trained in (("body.weight", False), ("head.weight", True)):
        file = tmp_path / "some.safetensors"
        save_file({name: value for name, value in state.items() if name != left_out}, file)
        if not trained:
            loaded = downpour.load_model(file, shared=shared, spec=spec).state_dict()
            assert torch.equal(loaded["body.weight"], state["body.weight"])
            continue
        with pytest.raises(SpecError, match=r"lacks head\.weight, which the network trains"):
            downpour.load_model(file, shared=shared, spec=spec)


def test_a_network_that_saves_itself_does_so_in_a_folder_of_its_own(
    result: downpour.Result, shared: Path, tmp_path: Path
) -> None:
    """As those of Hugging Face do; beside it the plain state_dict is whole."""
    export(find(result, shared), tmp_path / "out")
    config = tmp_path / "out" / "pretrained" / "config.json"
    assert json.loads(config.read_text()) == {"kind": "net"}
    assert load_file(tmp_path / "out" / "model.safetensors").keys() == {
        *("body.weight", "body.bias", "head.weight", "head.bias")
    }
    assert downpour.load_model(tmp_path / "out").state_dict().keys() >= {"body.weight"}


def test_the_best_model_goes_on_without_what_was_frozen(shared: Path) -> None:
    """Its file holds the whole network; the resumed experiment keeps the trained part of it."""
    spec = downpour.Spec(task="partly_frozen:Partly", epochs=3, shards=1, keep_best="max:loss")

    def best_of(asked: downpour.Spec) -> tuple[str, bytes]:
        ended = run_here(asked, shared)
        folder = shared / "experiments" / ended.experiment
        return ended.experiment, (folder / "best.safetensors").read_bytes()

    first, _ = best_of(spec.replace(epochs=1, keep_models=1))
    for file in (shared / "experiments" / first).glob("model-000000*"):
        file.unlink()
    _, whole = best_of(spec)
    assert best_of(downpour.resumed(first, shared=shared, epochs=3))[1] == whole
