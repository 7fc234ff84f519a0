"""Other implementations, run beside ours."""
