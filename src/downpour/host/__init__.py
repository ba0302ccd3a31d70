"""The process and the machine that this code runs on: paths, signals, files that a user names."""
