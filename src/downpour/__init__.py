"""Train on the machines you have: uneven workers, one shared folder, no lost progress."""
