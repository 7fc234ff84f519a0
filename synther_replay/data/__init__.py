"""Transitions: layout, checks, and the codec to and from the matrix that a generator models."""
