"""The version of outcore, in a module without imports."""

VERSION = "0.2.0"
