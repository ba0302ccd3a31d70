"""`python -m downpour` is the command `downpour`."""

from __future__ import annotations

from downpour.cli import main

main()
