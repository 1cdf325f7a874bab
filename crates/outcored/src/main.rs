//! The daemon of a pool: its manager, or one of its I/O servers.

fn main() {}
