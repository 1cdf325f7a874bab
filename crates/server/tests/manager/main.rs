//! The manager against a naive model, against POSIX, against other managers, and against bad requests.

mod model;
mod operations;
mod orphans;
mod pool;
mod races;
mod rejections;
mod rights;
