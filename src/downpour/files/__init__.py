"""The shared directory: names, publishing, codecs, the fold of updates, logs."""
