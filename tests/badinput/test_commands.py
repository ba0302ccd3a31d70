"""Command lines that cannot be meant: words, numbers, addresses and files of every command.

`FILE` is a spec that fits, `DIR` an empty folder, `FIFO` a FIFO that no process has open, `TRACES`
a trace that is shipped; no process listens at port 1.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.badinput.conftest import Refused
from tests.conftest import Allow

TRACES = Path(__file__).parents[2] / "traces"
NOBODY = "127.0.0.1:1"

WORDS: list[tuple[str, ...]] = [
    ("frobnicate", "No such command 'frobnicate'"),
    ("Run", "No such command 'Run'"),
    ("stat", "Did you mean 'status'?"),
    ("--frob", "No such option: --frob"),
    ("run --epoch 3", "No such option: --epoch", "--epochs"),
    ("run --epochs", "'--epochs' requires an argument"),
    ("run FILE FILE", "unexpected extra argument"),
    ("run --flip=3", "'--flip' does not take a value"),
    ("run -x", "No such option"),
    ("predictor frob", "No such command 'frob'"),
    ("predictor score", "Missing argument 'TRACES'"),
    ("predictor train TRACES", "Missing option '--out'"),
    ("grid", "Missing argument 'FILE'"),
    ("tune", "Missing argument 'FILE'"),
    ("report", "Missing argument 'FOLDER'"),
    ("cancel", "Missing argument 'ID'"),
    ("evaluate", "Missing argument 'ID|FILE'"),
    ("evaluate x --task-options a", "task_options = 'a'", "KEY=VALUE"),
    ("predict x", "Missing argument 'INPUT'"),
    ("predict x y --json --csv", "format = '--json --csv': must be one of the two"),
    ("export", "Missing argument 'ID|FILE'"),
    ("export x", "Missing option '--to'"),
    ("run --allow lab.py:f", "allow = 'lab.py:f'", "a module's name"),
    ("run --allow=", "allow = ''", "a module's name"),
    ("run --resume", "'--resume' requires an argument"),
    ("replay", "Missing argument 'ID'"),
    ("replay none-1 --shared DIR", "ID = 'none-1': there is no such experiment in "),
    ("replay ../x --shared DIR", "ID = '../x': must be an experiment's ID"),
    ("replay x --shared nowhere", "shared directory nowhere"),
    ("replay x --to", "'--to' requires an argument"),
    ("init --template frob", "template = 'frob'", "must be classifier, regression"),
    ("init a b", "unexpected extra argument"),
    ("results", "Missing argument 'ID'"),
    ("certs", "Missing argument"),
    ("compare-policies", "Missing argument 'TRACES'"),
    ("run --on frob", "on = 'frob'", "must be local, inline, slurm, ray, ssh or compose"),
    ("run --partition all", "partition = 'all'", "needs --on slurm"),
    ("run --on inline --gres gpu:1", "gres = 'gpu:1'", "needs --on slurm"),
    ("run --on local --sbatch=--mem=4G", "sbatch = ", "needs --on slurm"),
    ("run --dry-run", "dry_run = True", "needs --on slurm"),
    ("run --on ray --cpus-per-worker -1", "cpus_per_worker = -1.0", "at least 0"),
    ("run --on ray --gpus-per-worker one", "'--gpus-per-worker'", "'one' is not a number"),
    ("run --on ray --ray-wait-seconds inf", "ray_wait_seconds = inf", "at least 0"),
    ("run --gpus-per-worker 1", "gpus_per_worker = 1.0", "needs --on ray"),
    ("run --on ray --dry-run", "dry_run = True", "needs --on slurm"),
    ("run --on slurm --time soon", "time = 'soon'", "H:MM:SS"),
    ("run --on slurm --time 3", "time = '3'", "must be above 180 s"),
    ("run --on slurm --signal KILL@9", "signal = 'KILL@9'", "USR2@SECONDS"),
    ("run --on slurm --partition=-x", "partition = '-x'", "one word"),
    ("run --on slurm --sbatch=mem=4G", "sbatch = 'mem=4G'", "--qos=low"),
    ("run --on slurm --sbatch=--array=1-9", "sbatch = '--array=1-9'", "cannot be set here"),
    ("run --on slurm --drain-seconds -1", "drain_seconds = -1.0", "from 0 to"),
    ("run --on slurm --drain-seconds soon", "'--drain-seconds'", "'soon' is not a number"),
    ("run --hosts FILE", "hosts = ", "needs --on ssh"),
    ("run --on local --ssh-config x", "ssh_config = 'x'", "needs --on ssh"),
    ("run --manager-host n1", "manager_host = 'n1'", "needs --on slurm or ssh"),
    ("run --on ssh", "hosts = 'hosts.txt'", "a host a line (No such file or directory)"),
    ("run --on ssh --hosts no/such", "hosts = 'no/such'", "No such file"),
    ("run --on ssh --manager-host=-x", "manager_host = '-x'", "an address of this machine"),
    (
        "up --device tpu --shared DIR",
        "device = 'tpu'",
        "must be cpu, cuda, mps, xpu or auto",
    ),
    ("up --workers 0 --shared DIR", "workers = 0", "at least 1"),
    ("up --threads 0 --shared DIR", "threads = 0", "at least 1"),
    ("up --patience 0 --shared DIR", "patience = 0.0", "0.1 to 1000"),
    ("up --on inline --shared DIR", "on = 'inline'", "nothing of it can stay"),
    ("up --on ssh --hosts no/such --shared DIR", "hosts = 'no/such'", "No such file"),
    ("up --on slurm --host n1 --shared DIR", "host = 'n1'", "needs --on local"),
    ("up --on ray --service --shared DIR", "service = True", "needs --on local"),
    ("up --no-manager --shared DIR", "no_manager = True", "needs --service"),
    ("up --dry-run --shared DIR", "dry_run = True", "needs --on slurm or ssh"),
    ("run --idle-seconds -1 --shared DIR", "idle_seconds = -1.0", "from 0 to"),
    ("up --idle-seconds soon --shared DIR", "'soon' is not a number"),
    ("worker --label gpu --shared DIR", "label = 'gpu'", "must be KEY=VALUE"),
    ("worker --label a=1 --label a=2 --shared DIR", "label = 'a'", "is given twice"),
    ("worker --count 0 --shared DIR", "count = 0", "from 1 to"),
    ("worker --count two --shared DIR", "'two' is not a whole number"),
    ("worker --count 2 --advertise n1:80 --shared DIR", "advertise = 'n1:80'", "needs no port"),
    ("down --drain-seconds -1 --shared DIR", "drain_seconds = -1.0", "from 0 to"),
    ("down --drain-seconds soon --shared DIR", "'soon' is not a number"),
    ("doctor --hosts no/such --shared DIR", "hosts = 'no/such'", "No such file"),
    ("doctor --ssh-config x --shared DIR", "ssh_config = 'x'", "needs --hosts"),
    ("run --json --csv", "format = '--json --csv': must be one of the two"),
    ("results x --json --csv", "format = '--json --csv': must be one of the two"),
    ("compare-policies TRACES --json --csv", "format = '--json --csv'"),
]
NUMBERS: list[tuple[str, ...]] = [
    ("run --workers 0", "workers = 0", "at least 1"),
    ("run --workers -3", "workers = -3", "at least 1"),
    ("replay x --until two", "'--until'", "'two' is not a whole number"),
    ("run --workers two", "'--workers'", "'two' is not a whole number"),
    ("run --workers 1.5", "'1.5' is not a whole number"),
    ("run --workers=", "'' is not a whole number"),
    ("run --workers 2 --standbys 2 --policy late", "standbys = 2", "fewer than the workers"),
    ("run --patience 0 --shared DIR", "patience = 0.0", "0.1 to 1000"),
    ("run --patience nan --shared DIR", "patience = nan", "0.1 to 1000"),
    ("run --patience soon", "'soon' is not a number"),
    ("list --last few", "'few' is not a whole number"),
    ("list --last -1", "--last = -1", "0 on"),
    ("manager --port x", "'x' is not a whole number"),
    ("manager --port 70000 --shared DIR", "port", "70000"),
    ("manager --port -1 --shared DIR", "port", "-1"),
    ("manager --patience 0.01 --shared DIR", "patience = 0.01", "0.1 to 1000"),
    ("manager --metrics-port 70000 --port 0 --shared DIR", "70000"),
    ("worker --port 70000 --shared DIR", "port", "70000"),
    ("simulate --seeds 0", "seeds = 0", "from 1 to"),
    ("simulate --seeds many", "'many' is not a whole number"),
    ("simulate --seed -1", "seed = -1"),
    ("simulate --from-seed -5 --seeds 1", "from-seed = -5"),
    ("simulate --seed 1 --faults 99", "faults = '99'", "numbers from 1 to"),
    ("simulate --seed 1 --faults a,b", "faults = 'a,b'"),
    ("simulate --seed 1 --faults 1,,2", "faults = '1,,2'"),
    ("simulate --workers 0", "workers = 0", "from 1 to"),
    ("simulate --workers 9999999", "workers = 9999999", "from 1 to"),
    ("simulate --workers 2 --shards 0", "shards = 0", "from 1 to"),
    ("simulate --workers 2 --rounds 0", "rounds = 0", "from 1 to"),
    ("simulate --workers 2 --task-seconds 0", "task-seconds = 0.0", "above 0"),
    ("simulate --workers 2 --task-seconds nan", "task-seconds = nan", "0 or above"),
    ("simulate --workers 2 --spread -1", "spread = -1.0", "0 or above"),
    ("simulate --workers 2 --sync-seconds inf", "sync-seconds = inf"),
    ("simulate --workers 2 --heartbeat-seconds x", "'--heartbeat-seconds'", "'x'"),
    ("certs a --days 0 --out DIR/c", "days = 0"),
    ("certs a --days x", "'x' is not a whole number"),
    ("certs a --days 99999999 --out DIR/c", "days = 99999999"),
    ("compare-policies TRACES --jobs 0", "jobs = 0", "from 1 to"),
    ("compare-policies TRACES --rounds 0", "rounds = 0", "from 1 to"),
    ("compare-policies TRACES --moving 2", "moving = 2.0", "from 0 to 1"),
    ("compare-policies TRACES --price -1", "price = -1.0"),
    ("compare-policies TRACES --model-mb nan", "model-mb = nan"),
    ("compare-policies TRACES --heartbeat-seconds 0", "heartbeat-seconds = 0"),
    ("compare-policies TRACES --policies frob", "policies = 'frob'", "must be of wait"),
    ("compare-policies TRACES --policies wait:x", "policies = 'wait:x'"),
    ("compare-policies TRACES --scenario frob", "frob"),
    ("compare-policies TRACES --figure plot.pdf", "figure = 'plot.pdf'", ".png or .svg"),
    ("compare-policies TRACES --figure no/plot.png", "figure = 'no/plot.png'", "that exists"),
    ("predictor score TRACES --only frob", "only = 'frob'", "must be one of"),
    ("predictor score TRACES --folds 1", "folds = 1", "2 or above"),
    ("predictor score TRACES --retrain --nets 0", "nets = 0", "1 or above"),
    ("predictor score TRACES --retrain --epochs 0", "epochs = 0", "1 or above"),
    ("predictor score TRACES --seed -1", "seed = -1", "0 or above"),
    ("predictor score TRACES --nets 3", "nets = 3", "needs --retrain"),
    ("predictor train TRACES --out no/such.safetensors", "out = ", "a folder that exists"),
    ("predictor train TRACES --out x --nets 0", "nets = 0"),
]
PLACES: list[tuple[str, ...]] = [
    *((f"{command} --shared=", "shared = ''", "must be a path") for command in ("run", "manager")),
    *(
        (f"{command} --shared=", "shared = ''", "must be a path")
        for command in ("worker", "doctor")
    ),
    ("results x --shared=", "shared = ''", "must be a path"),
    *(
        (f"{command} --shared s3://", "shared = 's3://'", "must be as s3://BUCKET/PREFIX")
        for command in ("manager", "worker", "submit", "list", "doctor")
    ),
    ("manager --shared s3://a//b", "shared = 's3://a//b'", "must be as s3://BUCKET/PREFIX"),
    ("manager --shared gs://a?b=1", "shared = 'gs://a?b=1'", "must be as s3://BUCKET/PREFIX"),
    ("manager --shared az://c/x", "shared = 'az://c/x'", "Account must be specified"),
    ("manager --shared s3://a/b --make-token", "make_token = True", "needs --token-file"),
    ("run --shared s3://a/b", "shared = 's3://a/b'", "must be a folder here"),
    ("replay x --shared s3://a/b", "shared = 's3://a/b'", "must be a folder here"),
    ("submit --resume x-1 --shared s3://a/b", "s3://a/b", "must be a folder here"),
    ("run --data-dir s3://a/b", "s3:/"),
    ("run --shared file://a/b", "shared = 'file://a/b'", "file:///"),
    ("run --shared FILE", "shared directory", "not a folder"),
    ("run --shared FILE/in", "shared directory", "not a folder"),
    ("run --shared LONG", "shared = 'xxx", "255 between two slashes"),
    ("run --shared ~nobody-of-that-name/x", "shared = '~nobody-of-that-name/x'", "no such user"),
    ("run --shared /proc/1/nothing", "shared directory /proc/1/nothing"),
    ("manager --shared FILE --port 0", "shared directory", "not a folder"),
    (
        "worker --shared DIR/no --manager NOBODY --connect-seconds 0",
        "shared directory",
        "no such folder",
    ),
    ("doctor --shared DIR/no/where --json=", "does not take a value"),
    ("run --data-dir DIR/no", "'--data-dir'", "does not exist"),
    ("run --data-dir FILE", "'--data-dir'", "is a file"),
    ("run --tensorboard=", "tensorboard = ''", "must be a path"),
    ("run nowhere.toml", "FILE = 'nowhere.toml'", "readable TOML file (No such file"),
    ("run DIR", "FILE = ", "readable TOML file (Is a directory)"),
    ("run LONG", "FILE = 'xxx", "255 between two slashes"),
    ("run NOISE", "FILE = ", "not UTF-8 text"),
    ("experiment nowhere.toml", "FILE = 'nowhere.toml'", "readable TOML file"),
    ("experiment DIR", "FILE = ", "readable TOML file"),
    ("experiment GRID --out=", "out = ''", "must be a path"),
    ("experiment GRID --out FILE", "folder = ", "not a folder"),
    ("experiment GRID --out FULLDIR", "folder = ", "is not empty"),
    ("experiment GRID --detach --status", "options = '--detach --status'", "one of them"),
    ("tune nowhere.toml", "FILE = 'nowhere.toml'", "readable TOML file"),
    ("tune NOISE", "FILE = ", "not UTF-8 text"),
    ("tune FILE", "search = None", "must be a table"),
    ("report nowhere", "FOLDER = 'nowhere'", "downpour grid"),
    ("report FILE", "FOLDER = ", "downpour grid"),
    ("report DIR", "FOLDER = ", "downpour grid"),
    ("report=", "No such command"),
    ("results ../x --shared DIR --manager NOBODY", "ID = '../x'", "downpour list"),
    ("results . --shared DIR --manager NOBODY", "ID = '.'", "downpour list"),
    ("results nobody-1 --shared DIR --manager NOBODY", "ID = 'nobody-1'", "not in", "refused"),
    ("run --dataset frob", "dataset = 'frob'", "known are digits"),
    ("run --dataset npz", "data_path = None", "needs one: --data-path FILE.npz"),
    ("run --dataset folder", "data_path = None", "needs one: --data-path FOLDER"),
    ("run --dataset npz --data-path no.npz", "data_path = 'no.npz'", "no such file"),
    ("run --dataset npz --data-path DIR", "data_path = ", "is not a .npz file"),
    ("run --dataset npz --data-path FILE", "data_path = ", "is not a .npz file"),
    ("run --dataset folder --data-path no", "data_path = 'no'", "no such file or folder"),
    ("run --dataset folder --data-path DIR", "data_path = "),
    ("run --dataset frob:make", "dataset = 'frob:make'", "DOWNPOUR_ALLOW"),
    ("run --dataset os:system", "dataset = 'os:system'", "DOWNPOUR_ALLOW"),
    ("run --dataset digits --dataset-options a=1", "dataset_options = ", "only a factory"),
    ("run --dataset-options a", "dataset_options = 'a'", "KEY=VALUE"),
    ("run --model-options =3", "model_options = '=3'", "KEY=VALUE"),
    ("run --init-from=", "init_from = ''", "an experiment's ID, or a safetensors file"),
    ("run --init-from LONG", "init_from = 'xxx", "255 between two slashes"),
    ("run --init-from no-1 --shared DIR", "init_from = 'no-1'", "and no experiment in the shared"),
    ("run --init-from no/1 --shared DIR", "init_from = 'no/1'", "there is no such file"),
    ("run --init-from DIR --shared DIR", "init_from = ", "has no model"),
    ("run --init-from FILE --shared DIR", "init_from = ", "must be a safetensors file"),
    ("run --init-from NOISE --shared DIR", "init_from = ", "must be a safetensors file"),
    ("run --allow lab.py", "allow = 'lab.py'", "a module's name", "without .py"),
    ("run --task lab.py:Mine --allow lab", "task = 'lab.py:Mine'", "without .py"),
    ("run --task lab.Mine --allow lab", "task = 'lab.Mine'", "named package.module:Class"),
    ("run --task lab.py:Mine", "package.module:Class", "did you mean lab:Mine?"),
    ("run --task ./lab.py:Mine", "did you mean lab:Mine?"),
    ("run --model nets/lab.py:net", "package.module:factory", "did you mean nets.lab:net?"),
    ("run --task gone:Mine --allow gone", "task = 'gone:Mine'", "no module gone"),
    (
        "run --task lab:Mine",
        "task = 'lab:Mine'",
        "DOWNPOUR_ALLOW allows none",
        "`--allow lab` allows it",
    ),
    ("run --init-checksum ab", "init_checksum = 'ab'", "needs init_from"),
    ("run --states-checksum ab", "states_checksum = 'ab'", "needs init_from"),
    ("run --resume x-1 --shared DIR", "resume = 'x-1'", "there is no such experiment in"),
    ("run --resume ../x --shared DIR", "resume = '../x'", "there is no such experiment in"),
    ("run --resume= --shared DIR", "resume = ''", "there is no such experiment in"),
    ("run FILE --resume x-1", "resume = 'x-1'", "FILE cannot be given"),
    ("run --rounds-before 3", "rounds_before = 3", "needs init_from"),
    ("init FILE", "DIR = ", "File exists"),
    ("init FILE/in", "DIR = ", "Not a directory"),
    ("init LONG", "DIR = 'xxx", "255 between two slashes"),
    ("evaluate x-1 --shared DIR", "model = 'x-1'", "there is no such file"),
    ("evaluate FILE", "model = ", "has no spec.toml beside it"),
    ("evaluate FILE --data=", "data = ''", "must be a path"),
    ("evaluate FILE --data-dir DIR/no", "'--data-dir'", "does not exist"),
    ("evaluate FILE --allow a/b", "allow = 'a/b'", "a module's name"),
    ("grid FILE --allow a/b", "allow = 'a/b'", "a module's name"),
    ("tune FILE --allow a/b", "allow = 'a/b'", "a module's name"),
    ("compare-policies TRACES --allow lab", "allow = ['lab']", "needs --spec"),
    ("submit --resume none-1 --shared DIR", "resume = 'none-1'", "no such experiment"),
    ("predict x-1 x.npy --shared DIR", "model = 'x-1'", "there is no such file"),
    ("predict DIR x.npy", "model = ", "has no model"),
    ("predict ../x/y x.npy --shared DIR", "model = '../x/y'", "there is no such file"),
    ("export x-1 --to DIR --shared DIR", "model = 'x-1'", "there is no such file"),
    ("export DIR --to DIR", "model = ", "has no model"),
    ("export FILE --to DIR", "model = ", "has no spec.toml beside it"),
    ("export FILE --to=", "to = ''", "must be a path"),
    ("run --policy late --policy-options speed=3", "policy_options.speed = 3", "it has:"),
    ("run --policy rebalance --split class", "split = 'class'", "random or equal"),
    ("predictor score nowhere.npz", "nowhere.npz"),
    ("predictor score FILE", "traces = ", "not an .npz file"),
    ("predictor score TRACES --predictor nowhere", "nowhere"),
    ("predictor score TRACES --predictor FILE", "FILE.toml"),
    ("predictor score TRACES --by frob", "label = 'frob'", "a label of all jobs"),
    ("predictor score TRACES --hold-out frob", "frob"),
    ("compare-policies nowhere.npz", "nowhere.npz"),
    ("compare-policies FILE", "traces = ", "not an .npz file"),
    ("compare-policies TRACES --spec nowhere.toml", "nowhere.toml", "readable TOML file"),
    ("compare-policies TRACES --data-dir DIR", "data-dir = ", "needs --spec"),
    ("manager --predictor nowhere --port 0 --shared DIR", "nowhere"),
    ("certs a --out FILE", "not a folder"),
    ("certs /etc --out DIR/c", "/etc"),
    ("certs , --out DIR/c", "','"),
    ("certs ../x --out DIR/c", "../x"),
]
MISTYPED: list[tuple[str, ...]] = [
    (f"run --{field} {word}", f"= '{word}'", f"; did you mean {meant}?")
    for field, word, meant in (
        ("mode", "snyc", "sync"),
        ("policy", "lat", "late"),
        ("split", "clas", "class"),
        ("split", "dirichlet", "dirichlet(0.5)"),
        ("aggregate", "avrage", "average"),
        ("compression", "top-k", "topk"),
        ("dataset", "digitss", "digits"),
        ("optimizer", "adm", "adam"),
        ("schedule", "cosin", "cosine"),
        ("loss", "crossentropy", "cross_entropy"),
        ("on", "slrum", "slurm"),
        ("device", "cud", "cuda"),
    )
]
MISTYPED += [
    ("init --template clasifier", "did you mean classifier?"),
    ("worker --device cud --shared DIR", "did you mean cuda?"),
    ("predictor score TRACES --only rige", "did you mean ridge?"),
    ("compare-policies TRACES --policies rebalence", "did you mean rebalance?"),
    ("run --mode frob", "mode = 'frob'", "or quorum\n"),
    ("run --learning-rate inf", "learning_rate = inf", "must be a finite number above 0"),
    ("run --weight-decay nan", "weight_decay = nan", "must be a finite number of at least 0"),
    ("run --learning-rate 0", "must be a number above 0"),
]
# A FIFO that has neither a reader nor a writer.
FIFOS: list[tuple[str, ...]] = [
    ("run FIFO", "FILE = ", "Not a regular file"),
    ("submit FIFO", "FILE = ", "Not a regular file"),
    ("grid FIFO", "FILE = ", "Not a regular file"),
    ("tune FIFO", "FILE = ", "Not a regular file"),
    ("run --on ssh --hosts FIFO", "hosts = ", "Not a regular file"),
    ("doctor --hosts FIFO", "hosts = ", "Not a regular file"),
    ("run --init-from FIFO --shared DIR", "init_from = ", "no such file"),
    ("evaluate FIFO", "model = ", "no such file"),
    ("compare-policies FIFO", "traces = ", "Not a regular file"),
    ("compare-policies TRACES --spec FIFO", "FILE = ", "Not a regular file"),
    ("compare-policies TRACES --figure FIFO", "figure = "),
    ("predictor score FIFO", "traces = ", "Not a regular file"),
    ("predictor score TRACES --predictor FIFO", "predictor = ", "Not a regular file"),
    ("predictor train TRACES --out FIFO", "out = ", "must be a file"),
    ("list --manager NOBODY --token-file FIFO", "token_file = ", "Not a regular file"),
    (
        "list --manager NOBODY --tls-cert FIFO --tls-key FIFO --tls-ca FIFO",
        "tls_cert = ",
        "Not a regular file",
    ),
    ("manager --port 0 --shared DIR --log FIFO", "log = ", "cannot be written"),
    ("manager --port 0 --shared FIFO", "shared directory", "not a folder"),
]
ADDRESSES: list[tuple[str, ...]] = [
    *((f"{command} --manager NOBODY", "127.0.0.1:1 cannot be reached") for command in
      ("submit --seed 1 --connect-seconds 0", "status", "watch --connect-seconds 0", "list",
       "cancel x")),
    *((f"{command} --manager host:port", "manager = 'host:port'") for command in
      ("submit --seed 1", "status", "watch", "list", "cancel x", "worker --shared DIR")),
    ("ping NOBODY", "127.0.0.1:1 cannot be reached"),
    ("ping NOBODY --worker", "127.0.0.1:1 cannot be reached"),
    ("ping host:port", "host:port"),
    ("ping :9090", ":9090"),
    ("ping host:0", "host:0"),
    ("ping host:99999", "host:99999"),
    ("ping [::1", "[::1"),
    ("ping no.such.host.invalid:9090", "no.such.host.invalid", "cannot be reached"),
    ("doctor --manager host:port --shared DIR", "manager = 'host:port'"),
    ("submit --seed 1 --manager NOBODY --tensorboard DIR", "tensorboard = ", "needs --watch"),
    ("submit", "FILE = None", "name the file of a spec"),
    ("submit --epochs 0 --manager NOBODY", "epochs = 0"),
    ("submit nowhere.toml --manager NOBODY", "FILE = 'nowhere.toml'"),
    ("experiment GRID --manager host:port", "manager = 'host:port'"),
    ("manager --host 256.1.1.1 --port 0 --shared DIR", "256.1.1.1"),
    ("manager --host 0.0.0.0 --port 0 --shared DIR", "0.0.0.0", "token"),
    ("worker --manager 127.0.0.1:1 --device tpu", "device = 'tpu'", "cpu, cuda, mps, xpu or auto"),
    ("list --manager NOBODY --token-file nowhere", "token_file = 'nowhere'"),
    ("list --manager NOBODY --token-file FILE", "token"),
    ("list --manager NOBODY --tls-cert nowhere", "tls"),
    ("list --manager NOBODY --tls-cert FILE --tls-key FILE --tls-ca FILE", "tls"),
]  # fmt: skip


@pytest.fixture
def places(tmp_path: Path, allowing: Allow) -> dict[str, str]:
    """What stands for what in the tables."""
    del allowing  # nothing is allowed
    file, grid, noise = (tmp_path / f"{name}.toml" for name in ("FILE", "GRID", "NOISE"))
    file.write_text("epochs = 1\n")
    grid.write_text('name = "grid"\nworkers = 1\nseed = 1\n')
    noise.write_bytes(b"\xff\xfe\x00name")
    empty, full = tmp_path / "empty", tmp_path / "full"
    empty.mkdir()
    fifo = tmp_path / "fifo.png"
    os.mkfifo(fifo)
    full.mkdir()
    (full / "of.txt").write_text("something else")
    return {
        "FULLDIR": str(full),
        "FILE": str(file),
        "GRID": str(grid),
        "NOISE": str(noise),
        "DIR": str(empty),
        "LONG": "x" * 300,
        "FIFO": str(fifo),
        "TRACES": str(TRACES / "traces.npz"),
        "NOBODY": NOBODY,
    }


@pytest.mark.parametrize(
    "row", [*WORDS, *NUMBERS, *PLACES, *MISTYPED, *FIFOS, *ADDRESSES], ids=lambda row: row[0]
)
def test_a_command_line_is_refused(
    bad: Refused, places: dict[str, str], row: tuple[str, ...]
) -> None:
    """One line, which names what is wrong; nothing is started, and nothing is left behind."""
    words = row[0].split(" ")
    for stands, for_ in places.items():
        words = [word.replace(stands, for_) for word in words]
    bad(words, *row[1:])
    assert not Path("shared_dir").exists()
    assert not Path("results").exists()
    shutil.rmtree(places["DIR"])
