"""The worker as a process: what it looks at before it starts."""

from __future__ import annotations

import pytest
import torch

from downpour.errors import SpecError
from downpour.worker.process import check_device


def test_a_device_that_is_not_there_is_refused() -> None:
    """The CPU always is; one that torch does not find is named."""
    check_device("cpu")
    if torch.cuda.is_available():
        check_device("cuda")
    else:
        with pytest.raises(SpecError, match="device = 'cuda': torch finds no such device"):
            check_device("cuda")
