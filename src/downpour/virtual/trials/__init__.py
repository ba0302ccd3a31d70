"""One plan carried out and judged, and the search for a seed that fails."""
