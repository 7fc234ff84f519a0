"""Atomic file writes and checkpoints without pickle."""
