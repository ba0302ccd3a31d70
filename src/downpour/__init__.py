"""Train on the machines you have: uneven workers, one shared folder, no lost progress.

>>> import downpour
>>> result = downpour.run(downpour.Spec(epochs=3), workers=4)  # doctest: +SKIP
>>> result.accuracy  # doctest: +SKIP
0.97
"""

from __future__ import annotations

from downpour.version import VERSION

# Type checkers take this name for typing's; importing typing would double the time of this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from downpour.allowlist import allow
    from downpour.api import run
    from downpour.credentials import Credentials
    from downpour.errors import DownpourError
    from downpour.remote import Client
    from downpour.replaying.replaying import replay
    from downpour.reports import Result
    from downpour.spec import Inside, Outer, Spec
    from downpour.tasks import Task
    from downpour.trained.loading import load_model
    from downpour.trained.resuming import resumed

__version__ = VERSION
__all__ = [
    "Client",
    "Credentials",
    "DownpourError",
    "Inside",
    "Outer",
    "Result",
    "Spec",
    "Task",
    "__version__",
    "allow",
    "load_model",
    "replay",
    "resumed",
    "run",
]

_HOMES = {
    "Client": "downpour.remote",
    "Credentials": "downpour.credentials",
    "DownpourError": "downpour.errors",
    "Inside": "downpour.spec",
    "Outer": "downpour.spec",
    "Result": "downpour.reports",
    "Spec": "downpour.spec",
    "Task": "downpour.tasks.task",
    "allow": "downpour.allowlist",
    "load_model": "downpour.trained.loading",
    "replay": "downpour.replaying.replaying",
    "resumed": "downpour.trained.resuming",
    "run": "downpour.api",
}


def __getattr__(name: str) -> object:
    """Import a name when it is first used: workers must not pay for what clients need."""
    if name not in _HOMES:
        raise AttributeError(f"module 'downpour' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Return all public names, for tab completion, also before they are imported."""
    return sorted({*globals(), *__all__})
