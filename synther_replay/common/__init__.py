"""Shared helpers: argument checks, seeds, compiled kernels and CUDA graphs."""
