"""Timings behind `throughput.py`."""
