"""Offline algorithms for many seeds at once, built from the parts of the online learner."""
