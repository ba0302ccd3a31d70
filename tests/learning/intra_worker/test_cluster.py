"""A cluster whose workers have helpers, and one whose workers have none."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

import downpour


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("on", "inside"),
    [
        ("local", downpour.Inside(processes=2)),
        ("inline", downpour.Inside(processes=2, how="pipeline")),
    ],
)
def test_the_model_is_the_same_and_no_helper_is_left(
    tmp_path: Path, on: str, inside: downpour.Inside
) -> None:
    """Two processes in each worker, or one that trains both halves of each batch."""
    spec = downpour.Spec(
        dataset="digits", model="mlp", shards=2, epochs=3, batch_size=32, inside=inside
    )
    alone = spec.replace(inside=downpour.Inside(), accumulate=2)
    models = []
    for number, one in enumerate((spec, alone)):
        folder = tmp_path / str(number)
        result = downpour.run(one, workers=2, shared=folder, on=on, progress=False)
        assert result.model_file is not None
        models.append(result.model_file.read_bytes())
    assert models[0] == models[1]
    words = [one.info["cmdline"] or [] for one in psutil.process_iter(["cmdline"])]
    assert not any(
        "downpour.learning.intra_worker.helper" in line and str(tmp_path) in line for line in words
    )
    mine = psutil.Process().children(recursive=True)
    assert not [one for one in mine if "downpour.learning.intra_worker.helper" in one.cmdline()]
