"""Results as figures, in one style."""
