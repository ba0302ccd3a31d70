"""What was trained, in use: found, loaded, measured, exported, and gone on with."""
