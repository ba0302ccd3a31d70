"""What token and TLS cost: a call, a new connection, and a round of tasks that train nothing.

A call is one to a manager that has nothing to do, over loopback and a connection that is kept. The
first call of a client is that and more: it connects, and both sides prove who they are. Rounds are
those of `coordination`, in memory. All are medians. The ways take turns within one run, and
`to_plain` compares each turn with the one in which nothing is asked; so it stands a moderate load.
"""

from __future__ import annotations

import secrets
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from operator import truediv
from pathlib import Path

from common import Row, command_line, folders, show
from coordination import Case, median_round, spec

import downpour
from downpour import Credentials
from downpour.cluster.certificates import issue
from downpour.cluster.options import ManagerOptions
from downpour.launchers import LaunchPlan, LocalCluster
from downpour.network.rpc import ManagerClient, Trust, parse_address

PLAIN = "plain"
CASES = (
    Case(workers=2, network="mnist-cnn", options={}, rounds=40),
    Case(workers=10, network="mnist-cnn", options={}, rounds=20),
)


def ways(folder: Path) -> dict[str, Credentials]:
    """Return the ways in which members are told from strangers; the first asks nothing."""
    made = issue(["127.0.0.1,localhost"], folder / "certs", days=1)
    (machine,) = made.machines
    files = {
        "tls_cert": str(machine.certificate),
        "tls_key": str(machine.key),
        "tls_ca": str(made.authority),
    }
    token = secrets.token_urlsafe()
    return {
        PLAIN: Credentials(),
        "token": Credentials(token=token),
        "tls": Credentials(**files),
        "token and tls": Credentials(token=token, **files),
    }


def calls(given: dict[str, Credentials], folder: Path, turns: int) -> list[Row]:
    """Measure calls to managers in processes of their own, one for each way."""
    firsts: dict[str, list[float]] = {way: [] for way in given}
    others: dict[str, list[float]] = {way: [] for way in given}
    with ExitStack() as stack:
        managers = {}
        for way, credentials in given.items():
            options = ManagerOptions(shared=str(folder / way), port=0, credentials=credentials)
            cluster = stack.enter_context(LocalCluster(LaunchPlan(options, 0)))
            managers[way] = parse_address(cluster.address), Trust.load(credentials)
        for _ in range(turns):
            for way, (address, trust) in managers.items():
                with ManagerClient(address, trust=trust) as client:
                    firsts[way].append(_seconds(client.describe))
                    others[way] += [_seconds(client.describe) for _ in range(50)]
    first, kept = _medians(firsts), _medians(others)
    return [
        {
            "way": way,
            "first_call_ms": 1e3 * first[way],
            "call_us": 1e6 * kept[way],
            "to_plain": kept[way] / kept[PLAIN],
        }
        for way in given
    ]


def rounds(given: dict[str, Credentials], case: Case, parent: Path, turns: int) -> list[Row]:
    """Measure rounds of clusters that run beside each other and work one after the other."""
    seconds: dict[str, list[float]] = {way: [] for way in given}
    with ExitStack() as stack:
        clusters = {}
        for way, credentials in given.items():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=parent)))
            options = ManagerOptions(shared=str(folder), port=0, credentials=credentials)
            cluster = stack.enter_context(LocalCluster(LaunchPlan(options, case.workers)))
            client = downpour.Client(cluster.address, shared=folder, credentials=credentials)
            clusters[way] = folder, cluster, stack.enter_context(client)
        for _ in range(turns):
            for way, (folder, cluster, client) in clusters.items():
                result = client.wait(client.submit(spec(case)), check=cluster.check)
                seconds[way].append(median_round(folder, result.experiment)[0])
    return [
        {
            "way": way,
            "workers": case.workers,
            "round_ms": 1e3 * statistics.median(each),
            "to_plain": statistics.median(map(truediv, each, seconds[PLAIN])),
        }
        for way, each in seconds.items()
    ]


def _medians(seconds: dict[str, list[float]]) -> dict[str, float]:
    return {way: statistics.median(each) for way, each in seconds.items()}


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


@contextmanager
def _parent() -> Iterator[Path]:
    where = folders()
    with tempfile.TemporaryDirectory(dir=where.get("memory", where["disk"])) as folder:
        yield Path(folder)


def main() -> None:
    """Measure calls and connections, then rounds, and print a line for each way."""
    parser = command_line(__doc__)
    parser.add_argument("--workers", type=int, nargs="*", help="only rounds of these workers")
    parser.add_argument("--turns", type=int, default=7, help="how often each round is measured")
    options = parser.parse_args()
    downpour.allow("idle")
    with _parent() as folder:
        given = ways(folder)
        rows = calls(given, folder, turns=40)
        for case in CASES:
            if options.workers is None or case.workers in options.workers:
                some = {way: given[way] for way in (PLAIN, "token", "tls")}
                rows += rounds(some, case, folder, options.turns)
    show(rows, as_json=options.json)


if __name__ == "__main__":
    main()
