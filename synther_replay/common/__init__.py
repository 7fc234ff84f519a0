"""What every part uses: device checks, seeds, compiled and captured functions."""
