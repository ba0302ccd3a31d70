"""Train on the machines you have: uneven workers, one shared folder, no lost progress.

>>> import downpour
>>> result = downpour.run(downpour.Spec(epochs=3), workers=4)  # doctest: +SKIP
>>> result.accuracy  # doctest: +SKIP
0.97
"""

from __future__ import annotations

from downpour.version import VERSION

TYPE_CHECKING = False  # as type checkers read it; importing typing would be half of all work here
if TYPE_CHECKING:
    from downpour.api import Client, run
    from downpour.credentials import Credentials
    from downpour.errors import DownpourError
    from downpour.reports import Result
    from downpour.spec import Spec

__version__ = VERSION
__all__ = ["Client", "Credentials", "DownpourError", "Result", "Spec", "__version__", "run"]

_HOMES = {
    "Client": "downpour.api",
    "Credentials": "downpour.credentials",
    "DownpourError": "downpour.errors",
    "Result": "downpour.reports",
    "Spec": "downpour.spec",
    "run": "downpour.api",
}


def __getattr__(name: str) -> object:
    """Import what is asked for only then: workers must not pay for what clients need."""
    if name not in _HOMES:
        raise AttributeError(f"module 'downpour' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Name what is here for Tab and `dir`, also before it was imported."""
    return sorted({*globals(), *__all__})
