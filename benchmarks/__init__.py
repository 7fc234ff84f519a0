"""Benchmarks: scripts at the top, packages by job below; imported as ``synther_replay.benchmarks``."""
