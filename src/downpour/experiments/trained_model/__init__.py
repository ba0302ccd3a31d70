"""Uses trained models: find, load, measure, export and continue them."""
