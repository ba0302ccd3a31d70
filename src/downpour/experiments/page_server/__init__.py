"""Serves the live page: experiments of a place, to browsers that may see them."""
