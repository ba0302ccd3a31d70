"""The shared directory: names, publishing, codecs, the fold of updates, journals and records."""
