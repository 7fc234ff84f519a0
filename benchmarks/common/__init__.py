"""Shared by all benchmarks: command line, provenance, result files, resumable runs, process pools, statistics."""
