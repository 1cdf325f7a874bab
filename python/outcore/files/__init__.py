"""Files and directories, plain and in pools: what they are, found, changed, copied and moved."""
