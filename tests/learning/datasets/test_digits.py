"""The digits set of scikit-learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from downpour.core.spec import Spec
from downpour.learning.datasets import built_in, open_prepared, prepare


def test_a_fifth_of_every_class_is_held_out(tmp_path: Path) -> None:
    """1,797 images of 0..16; each class gives about a fifth of itself to the test set."""
    dataset = open_prepared(tmp_path, prepare(Spec.make({}), tmp_path))
    assert (dataset.facts.train_samples, dataset.facts.test_samples) == (1438, 359)
    assert dataset.train.x.max() == 16
    train, test = (np.bincount(part.y, minlength=10) for part in (dataset.train, dataset.test))
    assert np.all(np.abs(test - (train + test) / 5) <= 1)


def test_the_cut_does_not_depend_on_the_seed(tmp_path: Path) -> None:
    """Experiments with different seeds are measured on the same test set."""
    assert prepare(Spec.make({"seed": 0}), tmp_path) == prepare(Spec.make({"seed": 1}), tmp_path)


def test_the_images_are_those_of_scikit_learn(tmp_path: Path) -> None:
    """Train and test examples together are what `load_digits` returns, in other order."""
    from sklearn.datasets import load_digits

    theirs = load_digits()
    dataset = open_prepared(tmp_path, prepare(Spec.make({}), tmp_path))
    parts = (dataset.train, dataset.test)
    ours = np.concatenate([np.c_[part.y, part.x.reshape(len(part.y), -1)] for part in parts])
    wanted = np.c_[theirs.target, theirs.data]
    assert np.array_equal(ours[np.lexsort(ours.T)], wanted[np.lexsort(wanted.T)])


def test_the_file_holds_what_the_loader_gives() -> None:
    """Reading scikit-learn's file by itself is only quicker."""
    quick = built_in._from_its_file()
    images, labels = built_in._from_its_loader()
    assert quick is not None
    assert np.array_equal(quick[0], images)
    assert np.array_equal(quick[1], labels)
