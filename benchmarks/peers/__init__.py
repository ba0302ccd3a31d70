"""The same training in the idiom of other systems, each a script of its own: `compared.py`."""
