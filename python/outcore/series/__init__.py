"""Groups of arrays that a program writes repeatedly: time steps and checkpoints."""
