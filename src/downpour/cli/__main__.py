"""`python -m downpour.cli` is the command `downpour`."""

from downpour.cli import main

main()
