"""Stacked multi-layer perceptrons of many agents, in PyTorch and as Triton kernels."""
