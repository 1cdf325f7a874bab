"""The version of outcore, where it imports nothing else."""

VERSION = "0.1.0"
