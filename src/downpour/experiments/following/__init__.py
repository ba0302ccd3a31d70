"""What users watch a running experiment with: its record, epoch by epoch and event by event."""
