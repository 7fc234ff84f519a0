"""Other implementations to compare with: CORL, Stable-Baselines3, the published SynthER code, TVAE and CTGAN."""
