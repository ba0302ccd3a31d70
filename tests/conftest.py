"""What holds for all tests: machines are noisy, so how long an example takes decides nothing."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "untimed",
    settings.get_profile("ci" if os.environ.get("CI") else "default"),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("untimed")
