"""A policy, a splitter, a codec, an aggregator and a launcher, registered in `pyproject.toml`."""

import os
from dataclasses import dataclass

import numpy as np

from downpour.extending import Assignment, Policy, Statistic
from downpour.launchers import LauncherKind, LocalCluster, option


def latest_first(view):
    """Give the last shard to the first idle worker."""
    pairs = zip(sorted(view.idle), reversed(view.pending))
    return [
        Assignment(shard=task.shard, worker=name, reason="latest first") for name, task in pairs
    ]


LATEST_FIRST = Policy(decide=latest_first)


def by_class(request):
    """Cut the examples, sorted by class, into equal parts (McMahan et al. 2017)."""
    owners = np.empty(len(request.classes), np.int64)
    order = np.argsort(request.classes, kind="stable")
    owners[order] = np.arange(len(order)) * request.shards // len(order)
    return owners


class Halves:
    """Write a difference in half precision."""

    feedback = None

    def size(self, count):
        return 2 * count

    def encode(self, numbers):
        return numbers.astype("<f2").view(np.uint8)

    def decode(self, encoded, out):
        out[:] = encoded.view("<f2")


HALVES = Halves()


def near_median(differences):
    """Average the half of the updates that is nearest to the median (Xie et al. 2018)."""
    distances = np.abs(differences - np.median(differences, axis=0))
    nearest = np.argsort(distances, axis=0, kind="stable")[: len(differences) // 2 + 1]
    return np.take_along_axis(differences, nearest, axis=0).mean(axis=0)


NEAR_MEDIAN = Statistic(combine=near_median)


@dataclass(frozen=True)
class NiceOptions:
    """Options on the command line and in a file's [launch] table."""

    niceness: int = option(10, "How far to lower the workers' priority, 0 to 19.", "N")


def nice(options):
    """Start workers here, with a lower priority."""
    os.nice(options.niceness)
    return LocalCluster


NICE = LauncherKind(title="Nice", options=NiceOptions, make=nice)
