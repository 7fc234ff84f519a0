"""Stacks of elucidated diffusion models (EDM, Karras et al. 2022) over fixed-width rows: tensors only."""
