"""The offline benchmark behind `offline_d4rl.py`."""
