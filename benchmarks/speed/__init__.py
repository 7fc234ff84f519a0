"""Measurements of `throughput.py`, and update speed in Stable-Baselines3."""
