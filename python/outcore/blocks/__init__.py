"""The block interface: reads and writes of blocks by coordinates, through a cache."""
