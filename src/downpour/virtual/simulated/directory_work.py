"""A simulated manager's work in the shared directory, with retries and waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from downpour.base.errors import SharedDirectoryError, StoreError
from downpour.base.values import PublishedFile
from downpour.core.node.answers import Answers
from downpour.files.store import layout
from downpour.virtual.simulated import fake_files
from downpour.virtual.simulated.disk import LOOK_AGAIN_SECONDS
from downpour.virtual.simulated.environment import Environment
from downpour.virtual.simulated.lanes import Commander, Done


class DirectoryWork:
    """Reads and publishes files for a manager, however often the directory refuses."""

    def __init__(self, environment: Environment, manager: Commander) -> None:
        self._environment = environment
        self._manager = manager
        self._answers = Answers(manager.post, lambda: manager.now_seconds)

    def _publish_as(
        self,
        as_name: str,
        experiment: str,
        model: PublishedFile,
        leading: Sequence[PublishedFile],
        published: Callable[[PublishedFile], None],
        done: Done,
    ) -> None:
        disk = self._environment.disk

        def copy(content: bytes) -> None:
            if as_name not in disk.names(self._manager.host, experiment):
                self._put(experiment, as_name, content, published, done)
                return
            there = disk.store(experiment).describe(as_name)
            if bytes(disk.store(experiment).read(there)) != content:
                raise RuntimeError(f"{as_name} of {experiment} is there, and another one")
            published(there)

        self._read_version(
            experiment,
            model,
            leading,
            lambda content: self._insist(lambda: copy(content), done),
            done,
        )

    def _give_out(self, done: Done) -> None:
        """End the manager, because the directory stays away; the next manager continues."""
        self._manager.crash("because the shared directory stays away")
        done()

    def _insist(self, act: Callable[[], None], done: Done, waited: float = 0.0) -> None:
        """Repeat an action while the directory fails; end the manager when its patience ends."""
        try:
            act()
        except SharedDirectoryError:
            self._wait(partial(self._insist, act, done), done, waited)

    def _wait(self, again: Callable[[float], None], done: Done, waited: float) -> None:
        if waited >= self._environment.disk.timings.patience_seconds:
            self._give_out(done)
        else:
            self._manager.after(LOOK_AGAIN_SECONDS, again, waited + LOOK_AGAIN_SECONDS)

    def _takes(self, seconds: float) -> float:
        return self._environment.disk.takes(seconds, self._manager.host)

    def _put_version(
        self,
        experiment: str,
        number: int,
        model: bytes,
        outer: bytes | None,
        then: Callable[[PublishedFile, Sequence[PublishedFile]], None],
        done: Done,
        own: Mapping[int, bytes] | None = None,
    ) -> None:
        """Publish a model version, after the outer state and the shards' own parameters."""
        token = self._environment.token()
        files = deque([(layout.outer_name(number, token), outer)] if outer is not None else [])
        files += ((layout.own_name(number, n, token), made) for n, made in (own or {}).items())
        published: list[PublishedFile] = []

        def next_one(file: PublishedFile | None = None) -> None:
            published.extend([file] if file is not None else [])
            if files:
                self._put(experiment, *files.popleft(), next_one, done)
            else:
                name = layout.model_name(number, token)
                self._put(experiment, name, model, lambda made: then(made, published), done)

        next_one()

    def _put(
        self,
        experiment: str,
        name: str,
        content: bytes,
        then: Callable[[PublishedFile], None],
        done: Done,
    ) -> None:
        def failed(_: StoreError) -> None:
            self._give_out(done)

        patience = self._environment.disk.timings.patience_seconds
        publish = self._environment.disk.publish
        publish(self._manager, experiment, name, content, then, failed, patience)

    def _read(
        self, experiment: str, file: PublishedFile, then: Callable[[bytes], None], done: Done
    ) -> None:
        def failed(error: StoreError) -> None:
            if isinstance(error, SharedDirectoryError):
                self._give_out(done)
                return
            self._answers.failed(experiment, str(error))
            done()

        patience = self._environment.disk.timings.patience_seconds
        read = self._environment.disk.read
        read(self._manager, experiment, file, then, failed, patience, patience)

    def _read_version(
        self,
        experiment: str,
        file: PublishedFile,
        leading: Sequence[PublishedFile],
        then: Callable[[bytes], None],
        done: Done,
    ) -> None:
        """Read a version and, if it is a step, the versions that lead to it."""

        def read(content: bytes) -> None:
            if not fake_files.is_step(content):
                then(content)
                return
            follow = partial(fake_files.led_to, step=content)
            before, earlier = leading[-1], leading[:-1]
            self._read_version(experiment, before, earlier, lambda base: then(follow(base)), done)

        self._read(experiment, file, read, done)
