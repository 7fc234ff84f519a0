"""Transitions: layout, validation, and the codec to and from the matrix that the generator models."""
