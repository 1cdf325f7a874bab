//! CRC-32C (Castagnoli, RFC 3720 section B.4), the checksum of Zarr's shard index and of outcore's messages.

/// CRC-32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// CRC-32C of bytes that arrive in runs.
#[derive(Clone, Copy, Debug)]
pub struct Crc32c(crc_fast::Digest);

impl Default for Crc32c {
    fn default() -> Self {
        Self(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi))
    }
}

impl Crc32c {
    /// Adds the next run.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all runs so far.
    pub fn value(&self) -> u32 {
        self.0.finalize() as u32
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn check_values_of_rfc_3720() {
        assert_eq!(super::crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(super::crc32c(&[0; 32]), 0x8A91_36AA);
        let mut runs = super::Crc32c::default();
        for run in ["1234", "", "56789"] {
            runs.update(run.as_bytes());
        }
        assert_eq!(runs.value(), 0xE306_9283);
    }
}
