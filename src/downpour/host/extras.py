"""Libraries that only some commands need, and the error if such a library is missing.

An extra of the installation (`downpour-sgd[tune]`) brings them. Everything else, above all a
worker, must run without them, so only the functions that need them import them.
"""

from __future__ import annotations

from importlib.util import find_spec

from downpour.base.errors import MissingPackage

EXTRAS: dict[str, dict[str, str]] = {
    "blocks": {"pyarrow": "pyarrow"},
    "certs": {"cryptography": "cryptography"},
    "dashboard": {"h11": "h11", "starlette": "starlette", "uvicorn": "uvicorn"},
    "digits": {"sklearn": "scikit-learn"},
    "frames": {"pandas": "pandas"},
    "lab": {"greenlet": "greenlet"},
    "metrics": {"prometheus_client": "prometheus-client"},
    "mlflow": {"mlflow": "mlflow-skinny"},
    "objects": {"obstore": "obstore"},
    "predictor": {"sklearn": "scikit-learn", "threadpoolctl": "threadpoolctl"},
    "ray": {"ray": "ray"},
    "report": {
        "jinja2": "jinja2",
        "markupsafe": "markupsafe",
        "matplotlib": "matplotlib",
        "scipy": "scipy",
    },
    "tensorboard": {"tensorboard": "tensorboard"},
    "trackio": {"trackio": "trackio"},
    "tune": {"optuna": "optuna", "matplotlib": "matplotlib"},
    "wandb": {"wandb": "wandb"},
}
"""For each extra, its modules and the packages that hold them; `pyproject.toml` says the same."""


def require(purpose: str, extra: str) -> None:
    """Check that an extra's libraries are installed, before any work; `purpose` is for users."""
    for module, package in EXTRAS[extra].items():
        if not is_installed(module):
            raise MissingPackage(purpose, package, extra)


def is_installed(module: str) -> bool:
    """Whether Python finds a module; we don't import it, because that may take seconds."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False
