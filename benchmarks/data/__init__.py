"""D4RL's data sets: found, downloaded, read, or regenerated."""
