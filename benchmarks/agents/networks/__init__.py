"""Multi-layer perceptrons of many agents side by side, in PyTorch and as Triton kernels."""
