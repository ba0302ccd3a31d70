"""Results and progress as text in a terminal."""
