//! Names of types of elements in descriptions of arrays, by which a search of a pool finds them.

/// Zarr's names of types of elements, with those of a description, which end in their bytes.
pub const TYPES: [(&str, &str, u64); 14] = [
    ("bool", "b1", 1),
    ("int8", "i1", 1),
    ("int16", "i2", 2),
    ("int32", "i4", 4),
    ("int64", "i8", 8),
    ("uint8", "u1", 1),
    ("uint16", "u2", 2),
    ("uint32", "u4", 4),
    ("uint64", "u8", 8),
    ("float16", "f2", 2),
    ("float32", "f4", 4),
    ("float64", "f8", 8),
    ("complex64", "c8", 8),
    ("complex128", "c16", 16),
];
