"""`python -m downpour` is the command `downpour`."""

from downpour.cli import main

main()
