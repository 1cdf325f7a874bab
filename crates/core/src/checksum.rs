//! CRC-32C (Castagnoli, RFC 3720 section B.4), the checksum of Zarr's shard index and of the wire.

/// CRC-32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

#[cfg(test)]
mod tests {
    #[test]
    fn check_values_of_rfc_3720() {
        assert_eq!(super::crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(super::crc32c(&[0; 32]), 0x8A91_36AA);
    }
}
