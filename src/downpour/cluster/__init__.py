"""The core in real time: managers, workers, launchers that start them, and checks of a cluster."""
