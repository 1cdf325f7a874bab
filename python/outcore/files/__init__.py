"""Files and directories, plain and in pools: status, search, attributes, copies and moves."""
