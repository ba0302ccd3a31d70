"""The core in real time: managers, workers, what starts them where, and what examines them."""
