"""Serves the live page: shows a place's experiments to browsers that may see them."""
