"""How close synthetic rows are to real ones: behind `generator_fidelity.py`."""
