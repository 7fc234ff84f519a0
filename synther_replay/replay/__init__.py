"""The buffer: store, mixing, schedule, and what composes them."""
