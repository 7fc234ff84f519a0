"""Seed-parallel agents: SAC and REDQ online; TD3+BC, IQL, EDAC and CQL offline."""
