"""The pure core: it only makes decisions, and needs no clock, file, thread, socket or torch."""
