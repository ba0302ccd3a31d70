"""The commands that use a trained model: evaluate, predict, export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from downpour.cli.options import SHARED, Allow, Shared, allow_code, path_option
from downpour.cli.printing import say

Model = Annotated[
    str,
    typer.Argument(
        metavar="ID|FILE",
        help="An experiment, a file of it (ID/FILE), or a path: a model's file or its folder.",
    ),
]


def export(
    model: Model,
    to: Annotated[
        Path,
        typer.Option(
            "--to", metavar="DIR", parser=path_option("to"), help="A new or empty folder."
        ),
    ],
    shared: Shared = SHARED,
    allow: Allow = None,
) -> None:
    """Write a trained model into a folder of its own.

    It gets the network's plain state_dict as model.safetensors, its spec, and what must be known of
    the data to build the network: `downpour.load_model(DIR)` loads it anywhere. If the network has
    save_pretrained, as those of Hugging Face have, DIR/pretrained is what that writes. Prints what
    was written.
    """
    allow_code(allow)
    from downpour.trained.exporting import export as write
    from downpour.trained.finding import find

    for path in write(find(model, shared), to):
        say(str(path))
