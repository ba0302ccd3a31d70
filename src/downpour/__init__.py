"""Train on the machines you have: uneven workers, one shared folder, no lost progress.

>>> import downpour
>>> result = downpour.run(downpour.Spec(epochs=3), workers=4)  # doctest: +SKIP
>>> result.accuracy  # doctest: +SKIP
0.97
"""

from downpour.base import VERSION

# Type checkers take this name for typing's; importing typing would double the time of this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from downpour.base.errors import DownpourError
    from downpour.core.spec import Spec
    from downpour.core.spec_fields import Inside, Outer
    from downpour.experiments.client import Client
    from downpour.experiments.locating import resumed
    from downpour.experiments.replay import replay
    from downpour.experiments.studies.grid import Study
    from downpour.experiments.trained_model import load_model
    from downpour.experiments.training import run
    from downpour.host.paths import Credentials
    from downpour.learning.allowlist import allow
    from downpour.learning.tasks import Task
    from downpour.learning.tasks.trainer_task import from_trainer
    from downpour.show.notebook import Result
    from downpour_lab.policylab.comparison import compare_policies

__version__ = VERSION
__all__ = [
    "Client",
    "Credentials",
    "DownpourError",
    "Inside",
    "Outer",
    "Result",
    "Spec",
    "Study",
    "Task",
    "__version__",
    "allow",
    "compare_policies",
    "from_trainer",
    "load_model",
    "replay",
    "resumed",
    "run",
]

_HOMES = {
    "Client": "downpour.experiments.client",
    "Credentials": "downpour.host.paths",
    "DownpourError": "downpour.base.errors",
    "Inside": "downpour.core.spec",
    "Outer": "downpour.core.spec",
    "Result": "downpour.show.notebook",
    "Spec": "downpour.core.spec",
    "Study": "downpour.experiments.studies.grid",
    "Task": "downpour.learning.tasks",
    "allow": "downpour.learning.allowlist",
    "from_trainer": "downpour.learning.tasks.trainer_task",
    "load_model": "downpour.experiments.trained_model",
    "replay": "downpour.experiments.replay",
    "resumed": "downpour.experiments.locating",
    "run": "downpour.experiments.training",
}


if not TYPE_CHECKING:  # type checkers would believe that every name exists

    def __getattr__(name: str) -> object:
        """Import a name at its first use, because workers must not pay for the needs of clients."""
        if name in _HOMES:
            from importlib import import_module

            return getattr(import_module(_HOMES[name]), name)
        if name in __all__:  # an installed package brings it, such as the laboratory
            from importlib.metadata import entry_points

            for point in entry_points(group="downpour.functions", name=name):
                return point.load()
        raise AttributeError(f"module 'downpour' has no attribute '{name}'")


def __dir__() -> list[str]:
    """Return all public names, for tab completion, also before they are imported."""
    return sorted({*globals(), *__all__})
