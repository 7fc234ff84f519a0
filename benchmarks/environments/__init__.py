"""Tasks by name, environments in worker processes, simulators that can be set to a state, and score scales."""
