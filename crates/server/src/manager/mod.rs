//! The manager: names, layouts and rights.
