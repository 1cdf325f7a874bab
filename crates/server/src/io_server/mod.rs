//! An I/O server: the data files of one directory, each block with its checksum.
