"""An independent checker: what must be true of an experiment's history, whatever happened.

It reads the journal's segments and the files of the folder, and nothing of Downpour's own code: the
few lines that parse the journal are here. Whoever breaks a rule of Downpour's and mends its checks
alike does not mend these.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import xxhash

_SEGMENT = re.compile(r"journal-(\d+)-(\d+)\.jsonl")
_OBJECT = re.compile(r"(\d+)-(\d+)-(whole|gain)")
_IN_STEP = frozenset({"sync", "k-sync"})
_ENDED = frozenset({"spec.toml", "record.jsonl", "model.safetensors", "best.safetensors"})
UNDER_WAY = 1
"""Versions that a leader may still write when another has begun: the one that it was making."""
BESIDE_SECONDS = 5.0
"""So long a leader may decide beside its successor, by its own clock: it looks every second, and a
file system may answer from what it has seen a moment ago."""

Task = tuple[int, int]
"""A round and a shard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A line of a journal, and the term of the leader that wrote it."""

    term: int
    number: int
    at_seconds: float
    kind: str
    about: Mapping[str, Any]

    @property
    def task(self) -> Task:
        """The task that it is about, if it is about an attempt."""
        return self.about["attempt"]["round"], self.about["attempt"]["shard"]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The entries of a journal that count, in order, and those of leaders that were replaced."""

    counting: tuple[Entry, ...]
    void: tuple[Entry, ...]
    damaged: tuple[str, ...]

    def of(self, *kinds: str) -> list[Entry]:
        """Return the entries of some kinds that count."""
        return [entry for entry in self.counting if entry.kind in kinds]

    @property
    def spec(self) -> Mapping[str, Any]:
        """The resolved spec, as it was submitted."""
        submitted = self.of("submitted")
        spec: Mapping[str, Any] = submitted[0].about["spec"] if submitted else {}
        return spec


def read_history(folder: Path) -> History:
    """Read the journal in the folder of an experiment."""
    found = [(match, path) for path in folder.iterdir() if (match := _SEGMENT.fullmatch(path.name))]
    ordered = sorted((int(match[1]), int(match[2]), path) for match, path in found)
    lines, void, damaged = dict[int, Entry](), list[Entry](), list[str]()
    latest = 0
    for term, _, path in ordered:
        entries = _entries(term, path.read_bytes())
        if entries and term > latest:
            latest, first = term, entries[0].number
            void += [lines.pop(number) for number in sorted(lines) if number >= first]
        lines.update((entry.number, entry) for entry in entries)
    missing = sorted(set(range(1, max(lines, default=0) + 1)) - set(lines))
    damaged += [f"entry {number} of the journal is missing" for number in missing]
    counting = tuple(lines[number] for number in sorted(lines))
    return History(counting=counting, void=tuple(void), damaged=tuple(damaged))


def whole_texts(content: bytes) -> Iterator[bytes]:
    """Yield the lines of a file whose checksum is right."""
    for line in content.split(b"\n")[:-1]:
        checksum, _, text = line.partition(b" ")
        if xxhash.xxh3_64_hexdigest(text).encode() == checksum:
            yield text


def unpack_journals(objects: Path) -> None:
    """Turn a copy of a bucket into a folder: put each journal beside its experiment's files."""
    for journal in (objects / "journals").glob("*"):
        for path in sorted(path for path in journal.iterdir() if _OBJECT.fullmatch(path.name)):
            index, _, rest = path.read_bytes().partition(b"\n")
            for name, offset, size in json.loads(index):
                _write_at(objects / "experiments" / journal.name / name, offset, rest[:size])
                rest = rest[size:]


def violations(shared: Path, experiment: str, *, terms_max: int = 1) -> list[str]:
    """Return all that is wrong with an experiment that has ended, one line each.

    Args:
        shared: the shared directory, or a copy of it.
        experiment: the experiment's ID.
        terms_max: how many managers may have led, by what went wrong.
    """
    folder = shared / "experiments" / experiment
    history = read_history(folder)
    checks = (_one_leader, _each_update_once, _bases, _attempts, _one_ending)
    found = chain.from_iterable(check(history) for check in checks)
    files = chain(
        _leftovers(history, folder), _promises(history, folder), _terms(history, shared, terms_max)
    )
    return [*history.damaged, *found, *files]


def done_in_vain(folder: Path) -> tuple[int, int]:
    """Return how many attempts were assigned, and how many of them made no update that counts."""
    history = read_history(folder)
    attempts = {_attempt_of(entry) for entry in (*history.of("assigned"), *_void_assigned(history))}
    return len(attempts), len(attempts - {_attempt_of(entry) for entry in history.of("accepted")})


def _void_assigned(history: History) -> list[Entry]:
    return [entry for entry in history.void if entry.kind == "assigned"]


def _entries(term: int, content: bytes) -> list[Entry]:
    bodies = [json.loads(text) for text in whole_texts(content)]
    return [
        Entry(
            term=term,
            number=one["number"],
            at_seconds=one["at"],
            kind=one["kind"],
            about=one["entry"],
        )
        for one in bodies
    ]


def _write_at(path: Path, offset: int, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "r+b" if path.exists() else "xb") as file:
        file.seek(offset)
        file.write(content)


def _attempt_of(entry: Entry) -> tuple[int, int, int]:
    return (*entry.task, int(entry.about["attempt"]["attempt"]))


def _one_leader(history: History) -> Iterator[str]:
    """Each version has one maker, and who was replaced makes at most the one that it had begun."""
    made = dict[int, Entry]()
    for entry in history.of("aggregated"):
        number = int(entry.about["round"])
        if number in made:
            terms = f"terms {made[number].term} and {entry.term}"
            yield f"version {number + 1} was published twice, in {terms}"
        elif number != len(made):
            yield f"version {number + 1} follows version {len(made)}"
        made[number] = entry
    late = [entry for entry in history.void if entry.kind == "aggregated"]
    for term in sorted({entry.term for entry in late}):
        several = [int(entry.about["round"]) + 1 for entry in late if entry.term == term]
        if len(several) > UNDER_WAY:
            yield f"term {term} went on beside its successor: it published versions {several}"
    decided = [entry for entry in history.void if entry.kind not in {"observed", "taken-up"}]
    for term in sorted({entry.term for entry in decided}):
        moments = [entry.at_seconds for entry in decided if entry.term == term]
        if (seconds := max(moments) - min(moments)) > BESIDE_SECONDS:
            yield f"term {term} decided beside its successor, for {seconds:.0f} s"
    for before, after in zip(history.counting, history.counting[1:], strict=False):
        if after.term > before.term and after.kind != "taken-up":
            yield f"term {after.term} begins with {after.kind!r} instead of taking up"


@dataclass(slots=True)
class _Counting:
    """Which updates wait to be part of a version, and which are part of one."""

    waiting: dict[Task, int] = field(default_factory=dict)
    counted: dict[Task, int] = field(default_factory=dict)
    dropped: set[Task] = field(default_factory=set)

    def see(self, entry: Entry) -> Iterator[str]:
        if entry.kind == "accepted":
            yield from self._accept(entry)
        elif entry.kind == "given-up":
            if self.waiting.get(entry.task) == entry.about["attempt"]["attempt"]:
                del self.waiting[entry.task]
        elif entry.kind == "dropped":
            self.dropped |= {(entry.about["round"], shard) for shard in entry.about["shards"]}

    def _accept(self, entry: Entry) -> Iterator[str]:
        if entry.task in self.waiting or entry.task in self.counted:
            yield f"the update of {_called(entry.task)} was taken twice"
        self.waiting[entry.task] = int(entry.about["attempt"]["attempt"])

    def make(self, entry: Entry, shards: int, *, in_step: bool) -> Iterator[str]:
        number = int(entry.about["round"])
        named = [(int(part[0]), int(part[1])) for part in entry.about["parts"]]
        parts = named or [task for task in self.waiting if task[0] == number]
        version = f"version {number + 1}"
        for task in parts:
            if task in self.counted:
                yield f"{version} counts {_called(task)} again, as version {self.counted[task]} did"
            elif task not in self.waiting:
                yield f"{version} counts {_called(task)}, of which no update was taken"
            self.waiting.pop(task, None)
            self.counted[task] = number + 1
        if in_step:
            due = {(number, shard) for shard in range(shards)} - self.dropped
            for task in sorted(due.symmetric_difference(parts)):
                yield f"{version} is {'without' if task in due else 'also of'} {_called(task)}"

    def end(self, tasks: Iterable[Task]) -> Iterator[str]:
        """Say what is lost when the experiment has finished."""
        for task in tasks:
            if task not in self.counted and task not in self.dropped:
                yield f"the update of {_called(task)} is lost: no version counts it"


def _called(task: Task) -> str:
    return f"round {task[0]} shard {task[1]}"


def _each_update_once(history: History) -> Iterator[str]:
    """Every update that was taken is part of one version, and every version of the right ones."""
    spec, counting = history.spec, _Counting()
    shards = int(spec.get("shards") or 0)
    for entry in history.counting:
        if entry.kind == "aggregated":
            yield from counting.make(entry, shards, in_step=spec["mode"] in _IN_STEP)
        else:
            yield from counting.see(entry)
    if _finished(history):
        rounds = int(spec["epochs"]) * int(spec.get("meet") or 1)
        yield from counting.end((n, shard) for n in range(rounds) for shard in range(shards))


def _bases(history: History) -> Iterator[str]:
    """Every task begins from a version that counts; in step, from the one of its round."""
    spec, versions = history.spec, dict[str, int]()
    for entry in history.counting:
        if entry.kind == "prepared":
            versions.setdefault(entry.about["model"]["name"], 0)
        if entry.kind == "aggregated":
            versions[entry.about["model"]["name"]] = int(entry.about["round"]) + 1
            versions |= {own["name"]: -1 for own in entry.about["own"]}
        if entry.kind == "assigned" and not _is_again(entry.about["model"]["name"]):
            name, task = entry.about["model"]["name"], _called(entry.task)
            due = max(0, entry.task[0] - int(spec.get("overlap") or 0))
            if name not in versions:
                yield f"{task} began from {name}, which is no version that counts"
            elif spec["mode"] in _IN_STEP and versions[name] != due:
                yield f"{task} began from version {versions[name]} instead of {due}"


def _is_again(name: str) -> bool:
    """Whether a file is a version once more, in one file."""
    return name.startswith("whole-")


def _attempts(history: History) -> Iterator[str]:
    """Where an assignment decides what an update means, none counts that was not assigned."""
    if history.spec.get("mode") in _IN_STEP:
        return
    assigned = set[tuple[int, int, int]]()
    for entry in history.of("assigned", "accepted"):
        if entry.kind == "assigned":
            assigned.add(_attempt_of(entry))
        elif _attempt_of(entry) not in assigned:
            yield f"an update of {_called(entry.task)} counts whose attempt nobody assigned"


def _finished(history: History) -> bool:
    return any(entry.about["ending"] == "finished" for entry in history.of("concluded"))


def _one_ending(history: History) -> Iterator[str]:
    """It ends once, well, and nothing follows."""
    endings = history.of("concluded")
    if len(endings) != 1:
        yield f"it ended {len(endings)} times"
        return
    if not _finished(history):
        yield f"it ended otherwise: {endings[0].about['reason']}"
    after = [one.kind for one in history.counting if one.number > endings[0].number]
    if later := [kind for kind in after if kind not in {"observed", "taken-up", "evaluated"}]:
        yield f"after its end follow {', '.join(later)}"


def _terms(history: History, shared: Path, most: int) -> Iterator[str]:
    """Every leader that wrote has claimed its term, and none has without a reason."""
    claimed = {path.name for path in (shared / "terms").glob("[0-9]*")}
    if len(claimed) > most:
        yield f"{len(claimed)} managers led, though only {most} can have had a reason to"
    for term in sorted({entry.term for entry in (*history.counting, *history.void)}):
        if f"{term:06d}" not in claimed:
            yield f"nobody has claimed term {term}, in which the journal was written"


def _leftovers(history: History, folder: Path) -> Iterator[str]:
    """At the end only those files are there that the journal explains."""
    made = history.of("aggregated")
    versions = {entry.about["model"]["name"] for entry in made}
    kept = int(history.spec.get("keep_models") or 1 + history.spec.get("overlap", 0))
    newest = {entry.about["model"]["name"] for entry in made[-kept:]} if kept else set[str]()
    last = _last_files(history)
    # A leader that was cut off may give a version its name after the experiment has ended.
    beside = len({entry.term for entry in history.counting}) - 1
    for name in sorted(path.name for path in folder.iterdir()):
        if name in _ENDED or _SEGMENT.fullmatch(name) or name in last:
            continue
        if name.replace("mean-", "model-") in newest:
            continue
        if name.startswith("model-") and name not in versions and beside > 0:
            beside -= 1
        elif name.startswith("model-") and name in versions:
            if not history.spec.get("model_compression"):
                yield f"{name} is left over: it is an older version"
        else:
            yield f"{name} is left over: nothing in the journal explains it"


def _last_files(history: History) -> set[str]:
    """Return the files of each shard's last task, and of the last step, which stay."""
    last = dict[int, set[str]]()
    for entry in history.of("accepted"):
        update = entry.about["update"]
        state = update.get("optimizer_state") or {}
        several = {state.get("name", "")}
        if history.spec.get("overlap"):
            several.add(update["file"]["name"])
        last[entry.task[1]] = several
    made = history.of("aggregated")[-1:]
    outer = {(entry.about["outer"] or {}).get("name", "") for entry in made}
    frozen = {(entry.about["frozen"] or {}).get("name", "") for entry in history.of("prepared")}
    return outer | frozen | set(chain.from_iterable(last.values()))


def _promises(history: History, folder: Path) -> Iterator[str]:
    """The final model has the bytes that the journal promises, and the record tells the same."""
    for entry in history.of("concluded"):
        promised = entry.about.get("model")
        if promised is not None:
            file = folder / promised["name"]
            found = xxhash.xxh3_128_hexdigest(file.read_bytes()) if file.exists() else "missing"
            if found != promised["checksum"]:
                yield f"{file.name} is {found} instead of {promised['checksum']}"
    record = folder / "record.jsonl"
    if record.exists():
        lines = [json.loads(line) for line in record.read_text().splitlines()]
        told = [line["round"] for line in lines if line["kind"] == "aggregated"]
        made = [int(entry.about["round"]) for entry in history.of("aggregated")]
        if told != made:
            yield f"the record tells of versions {told}, the journal of {made}"
