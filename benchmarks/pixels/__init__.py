"""Offline learning from pixels in V-D4RL's setting: frames, BC and DrQ+BC, and synthetic latents."""
