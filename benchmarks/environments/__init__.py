"""Tasks, simulators and parallel environments."""
