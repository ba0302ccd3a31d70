"""A cluster in virtual time: processes, network, disk and clock."""
