"""What must hold in a simulated cluster, whatever happened to it."""
