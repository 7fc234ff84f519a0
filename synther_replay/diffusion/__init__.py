"""Stacks of EDM diffusion models (Karras et al. 2022) of fixed-width rows; no RL code."""
