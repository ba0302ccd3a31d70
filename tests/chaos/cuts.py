"""What goes wrong with the links of a lab, as values: drawn from a seed, begun, and healed.

Who is named by a role, because the leader is another host once a successor has taken over.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Literal

from tests.lab.hosts import LabHost
from tests.lab.lab import Lab

Role = Literal["leader", "worker", "workers", "store", "all"]
Way = Literal["both", "in", "out"]
MANAGERS = "pc1", "pc2"
WORKERS = "pc3", "pc4"
CLIENT = "pc5"
_FLAP_SECONDS = 1.0
_SKEW_SECONDS = -3600, 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One thing that goes wrong: `who` is cut off `from_` whom, or what else its kind says.

    Attributes:
        kind: `cut`, `flap`, `lose` (30 % of the packets), `throttle` (to 10 kB/s) or `slow`.
        who: whose link it is.
        from_: the other end, for `cut` and `slow`.
        way: which packets of `who` are lost.
        seconds: from its beginning to its healing.
    """

    kind: Literal["cut", "flap", "lose", "throttle", "slow"]
    who: Role
    from_: Role = "all"
    way: Way = "both"
    seconds: float

    @property
    def may_end_a_leader(self) -> bool:
        """Whether a manager may lose its lock by it, or miss its store for too long."""
        return self.who == "leader" and self.from_ in {"all", "store"}

    def __str__(self) -> str:
        words = f"{self.kind} {self.who}"
        if self.from_ != "all":
            words += f"-{self.from_}"
        return f"{words}{'' if self.way == 'both' else f' {self.way}'} {self.seconds:.0f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What goes wrong in one run; clocks of hosts may be wrong from its beginning."""

    troubles: tuple[Trouble, ...]
    skewed: Mapping[str, int]

    @property
    def terms_max(self) -> int:
        """How many terms there can be: without a reason no other manager takes over."""
        # A manager that ends for want of its store may be followed by one that ends as well.
        return 1 + 2 * sum(trouble.may_end_a_leader for trouble in self.troubles)

    def __str__(self) -> str:
        skewed = [f"{host}'s clock {seconds:+} s" for host, seconds in self.skewed.items()]
        return ", ".join([*map(str, self.troubles), *skewed])


KINDS: tuple[Callable[[float], Trouble], ...] = (
    lambda s: Trouble(kind="cut", who="leader", from_="worker", seconds=4 + 8 * s),
    lambda s: Trouble(kind="cut", who="leader", from_="workers", seconds=4 + 8 * s),
    lambda s: Trouble(kind="cut", who="leader", from_="store", seconds=4 + 14 * s),
    lambda s: Trouble(kind="cut", who="leader", seconds=16 + 8 * s),
    lambda s: Trouble(kind="cut", who="worker", from_="store", seconds=4 + 12 * s),
    lambda s: Trouble(kind="cut", who="worker", seconds=4 + 12 * s),
    lambda s: Trouble(kind="cut", who="leader", from_="worker", way="in", seconds=4 + 8 * s),
    lambda s: Trouble(kind="cut", who="leader", from_="worker", way="out", seconds=4 + 8 * s),
    lambda s: Trouble(kind="cut", who="leader", from_="store", way="in", seconds=4 + 14 * s),
    lambda s: Trouble(kind="cut", who="leader", from_="store", way="out", seconds=4 + 14 * s),
    lambda s: Trouble(kind="cut", who="worker", from_="store", way="out", seconds=4 + 12 * s),
    lambda s: Trouble(kind="flap", who="leader", seconds=6 + 6 * s),
    lambda s: Trouble(kind="flap", who="worker", seconds=6 + 6 * s),
    lambda s: Trouble(kind="lose", who="leader", seconds=6 + 6 * s),
    lambda s: Trouble(kind="lose", who="worker", seconds=6 + 6 * s),
    lambda s: Trouble(kind="throttle", who="leader", seconds=6 + 6 * s),
    lambda s: Trouble(kind="throttle", who="worker", seconds=6 + 6 * s),
    lambda s: Trouble(kind="slow", who="leader", from_="store", seconds=8 + 8 * s),
    lambda s: Trouble(kind="slow", who="workers", from_="store", seconds=8 + 8 * s),
)
"""What may go wrong, given how long, from 0 to 1."""


def drawn(random: Random, *, times: int, may_skew: bool, only_takeovers: bool = False) -> Schedule:
    """Draw a schedule, of all kinds or of those that may end a leader."""
    kinds = [kind for kind in KINDS if kind(0.0).may_end_a_leader or not only_takeovers]
    troubles = tuple(random.choice(kinds)(random.random()) for _ in range(times))
    skewed = random.random() < 0.3
    host, seconds = random.choice([*MANAGERS, *WORKERS]), random.choice(_SKEW_SECONDS)
    return Schedule(troubles=troubles, skewed={host: seconds} if skewed and may_skew else {})


class Acting:
    """A trouble in a lab, from `begin` to `end`; `look` is called in between.

    Args:
        lab: where.
        trouble: what.
        leader: the host whose manager leads now.
    """

    def __init__(self, lab: Lab, trouble: Trouble, leader: str) -> None:
        self._lab, self._trouble, self._leader = lab, trouble, leader
        self._is_cut = False

    @property
    def _hosts(self) -> list[LabHost]:
        return self._of(self._trouble.who)

    def _of(self, role: Role) -> list[LabHost]:
        names = {
            "leader": (self._leader,),
            "worker": WORKERS[:1],
            "workers": WORKERS,
            "store": ("store",),
            "all": (),
        }
        return [self._lab[name] for name in names[role]]

    def begin(self) -> None:
        for host in self._hosts:
            if self._trouble.kind == "throttle":
                host.throttle(10_000)
            elif self._trouble.kind == "lose":
                host.lose(0.3)
            elif self._trouble.kind == "slow":
                for peer in self._of(self._trouble.from_):
                    host.delay(0.5, to=peer)
            else:
                self._cut(host)
        self._is_cut = True

    def look(self, passed_seconds: float) -> None:
        """Cut a link that flaps, or heal it, each for a second."""
        is_cut = int(passed_seconds / _FLAP_SECONDS) % 2 == 0
        if self._trouble.kind == "flap" and is_cut != self._is_cut:
            for host in self._hosts:
                if is_cut:
                    host.cut()
                else:
                    host.heal()
            self._is_cut = is_cut

    def end(self) -> None:
        for host in self._hosts:
            if self._trouble.kind == "throttle":
                host.throttle()
            host.heal()

    def _cut(self, host: LabHost) -> None:
        for peer in self._of(self._trouble.from_):
            if self._trouble.way in {"both", "in"}:
                host.cut(from_=peer)
            if self._trouble.way in {"both", "out"}:
                host.cut(to=peer)
        if self._trouble.from_ == "all":
            host.cut()
