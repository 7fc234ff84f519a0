"""The online benchmark behind `online_dmc.py`."""
