"""A cluster in virtual time: processes, network, disk and clock."""

from downpour.host.extras import require

require("the simulator", "lab")
