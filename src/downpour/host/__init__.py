"""The process and the machine that this code runs in: paths, signals, files that a user names."""
