"""Train the digits with every split and see what the split does to accuracy.

Run it with `python examples/compare_splits.py`; it takes a minute or two and downloads nothing.
"""

from __future__ import annotations

import downpour

SPLITS = ("random", "equal", "class", "dirichlet(0.3)")


def main() -> None:
    """Print a line for each split: the accuracy after every epoch."""
    for split in SPLITS:
        spec = downpour.Spec(name="splits", dataset="digits", shards=5, split=split, epochs=6)
        result = downpour.run(spec, workers=3)
        accuracies = "  ".join(f"{epoch.accuracy or 0:6.1%}" for epoch in result.rounds)
        print(f"{split:<16}{accuracies}")  # noqa: T201 - what the example is for


if __name__ == "__main__":
    main()
