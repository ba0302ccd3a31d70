"""The live page: a process that reads records and shows them to any number of browsers."""
