"""Files: atomic writes, checkpoints without pickle."""
