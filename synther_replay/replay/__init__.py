"""The replay buffer and its parts: synthetic store, batch mixing, refit schedule, real ring buffer."""
