"""Balance: measured disks, channels, memory and arithmetic, and a model of their limits."""
