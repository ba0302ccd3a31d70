"""A cluster in virtual time: processes, network, disk and clock."""

from downpour.base.errors import require

require("the simulator", "lab")
