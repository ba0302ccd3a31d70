"""Clusters in the lab, started as anybody starts them, with the bytes of a run on one machine."""

import sys
from pathlib import Path

import pytest

from tests.chaos.forked import model_of_run
from tests.lab.conftest import MakeLab
from tests.lab.failing import until
from tests.lab.lab import Lab, why_not
from tests.lab.mixed import MACHINES, train, trained_alone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EPOCHS, SHARDS = 3, 3
SPEC = ["--dataset", "digits", "--model", "mlp", "--shards", str(SHARDS), "--seed", "3"]
SPEC += ["--epochs", str(EPOCHS), "--batch-size", "32"]
DOWNPOUR = (sys.executable, "-m", "downpour")
SECONDS = 200.0
MUCH_BYTES = 100_000_000


def test_run_on_ssh_trains_over_slow_links(make_lab: MakeLab, tmp_path: Path) -> None:
    """By the lab's own hosts; two shards need one each, for a late worker may find nothing left."""
    lab = make_lab("old-switch", 3, "folder")
    lab["pc3"].limit(processors=0.5)
    words = ["--on", "ssh", "--hosts", lab.hosts_file, "--workers", SHARDS]
    words += ["--shared", lab.folder]
    words += ["--shard-needs", "1=['host=pc2']", "--shard-needs", "2=['host=pc3']"]
    lab["pc1"].downpour("run", *words, *SPEC, seconds=SECONDS)
    [model] = lab.export.glob("experiments/*/model.safetensors")
    content = model.read_bytes()
    assert content == model_of_run(tmp_path, *SPEC, "--workers", str(SHARDS))
    stored = lab["store"].traffic()
    assert EPOCHS * SHARDS * len(content) < stored.received_bytes < MUCH_BYTES
    assert EPOCHS * len(content) < stored.sent_bytes < MUCH_BYTES
    for name in ("pc2", "pc3"):
        assert EPOCHS * len(content) < lab[name].traffic().sent_bytes < MUCH_BYTES


def cluster_in_a_bucket(lab: Lab) -> None:
    """Start a manager on one host, and by ssh a worker on each other one."""
    token = lab.path / "token"
    shared = ["--shared", lab.url, "--token-file", token]
    lab["pc1"].start(*DOWNPOUR, "manager", "--host", lab["pc1"].address, *shared, "--make-token")
    until("there is a token", token.exists)
    variables = [f"{name}={value}" for name, value in lab["pc2"].environment.items()]
    for name in ("pc2", "pc3"):
        lab["pc1"].start("ssh", name, "env", *variables, *DOWNPOUR, "worker", *shared)


def test_a_cluster_has_nothing_in_common_but_a_bucket_on_another_host(
    make_lab: MakeLab, tmp_path: Path
) -> None:
    """Every file goes over the links, for each host has a home folder of its own."""
    lab = make_lab("old-switch", 3, "objects")
    cluster_in_a_bucket(lab)
    words = ["--shared", lab.url, "--token-file", lab.path / "token"]

    def submitted() -> bool:
        submit = lab["pc1"].start(*DOWNPOUR, "submit", *SPEC, "--watch", *words)
        submit.communicate(timeout=SECONDS)
        return submit.returncode == 0

    until("the experiment is trained", submitted, SECONDS)
    keys = "import obstore, sys; from obstore.store import from_url; "
    keys += "store = from_url(sys.argv[1], client_options={'allow_http': True}); "
    keys += "[key] = [o['path'] for o in store.list().collect() "
    keys += "if o['path'].endswith('model.safetensors')]; "
    keys += "open(sys.argv[2], 'wb').write(bytes(obstore.get(store, key).bytes()))"
    lab["pc3"].run(sys.executable, "-c", keys, lab.url, lab.path / "model")
    content = (lab.path / "model").read_bytes()
    assert content == model_of_run(tmp_path, *SPEC, "--workers", str(SHARDS))
    assert EPOCHS * SHARDS * len(content) < lab["store"].traffic().received_bytes < MUCH_BYTES


def test_unequal_machines_train_to_the_bytes_of_one() -> None:
    """A slow host, a small one, one with a label that a shard needs, and one without the code."""
    if reason := why_not("folder"):
        pytest.skip(reason)
    mixed = train(EPOCHS)
    assert mixed.model == trained_alone(EPOCHS)
    assert len(mixed.rounds_seconds) == EPOCHS
    assert all(name in mixed.accounts[-1] for name in MACHINES)
