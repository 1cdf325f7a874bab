//! Disk space that a store reserves, so that it can commit removals when the disk is full.

use outcore_core::Room;

/// Bytes reserved, at most.
const MOST_KEPT: u64 = 8 << 20;
/// With fewer free bytes than this, the store allows only removals.
const MOST_NEEDED: u64 = 4 << 20;
/// On a small disk, both limits are this fraction of its size.
const PART: u64 = 32;

/// The reserve, and whether it currently exists.
pub(super) struct Reserve {
    room: Box<dyn Room>,
    is_kept: bool,
}

impl std::fmt::Debug for Reserve {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reserve").field("is_kept", &self.is_kept).finish_non_exhaustive()
    }
}

impl Reserve {
    /// Creates a reserve of nothing. The first look takes over the file of an earlier run.
    pub fn new(room: Box<dyn Room>) -> Self {
        Self { room, is_kept: false }
    }

    /// Whether there is space for more than removals. If not, the reserve returns to the disk; otherwise it is
    /// allocated again.
    pub fn look(&mut self) -> bool {
        let (Ok(free), Ok(total)) = (self.room.free_bytes(), self.room.total_bytes()) else {
            // Without an answer, the next commit finds out whether there is space.
            return true;
        };
        let (kept, needed) = (MOST_KEPT.min(total / PART), MOST_NEEDED.min(total / PART));
        if free < needed {
            // If this fails, less space is free, and the next look retries.
            self.is_kept = self.room.release().is_err();
            return false;
        }
        if !self.is_kept {
            self.is_kept = free >= kept + 2 * needed && self.room.keep(kept).is_ok();
        }
        self.is_kept || free >= kept + 2 * needed
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use outcore_core::{Error, ErrorKind, Result};

    const TOTAL: u64 = 1 << 30;

    /// Free and reserved bytes.
    type Disk = Arc<Mutex<(u64, u64)>>;

    struct Modelled(Disk);

    impl Room for Modelled {
        fn free_bytes(&self) -> Result<u64> {
            Ok(self.0.lock().unwrap().0)
        }

        fn total_bytes(&self) -> Result<u64> {
            Ok(TOTAL)
        }

        fn keep(&mut self, bytes: u64) -> Result<()> {
            let mut disk = self.0.lock().unwrap();
            if disk.0 < bytes {
                return Err(Error::new(ErrorKind::DiskFull, "full"));
            }
            *disk = (disk.0 + disk.1 - bytes, bytes);
            Ok(())
        }

        fn release(&mut self) -> Result<()> {
            let mut disk = self.0.lock().unwrap();
            *disk = (disk.0 + disk.1, 0);
            Ok(())
        }
    }

    #[test]
    fn the_reserve_is_released_on_a_full_disk_and_kept_again_with_room() {
        let disk: Disk = Arc::new(Mutex::new((100 << 20, 0)));
        let mut reserve = Reserve::new(Box::new(Modelled(disk.clone())));
        assert!(reserve.look());
        assert_eq!(*disk.lock().unwrap(), (92 << 20, 8 << 20));
        disk.lock().unwrap().0 = 0;
        assert!(!reserve.look());
        assert_eq!(*disk.lock().unwrap(), (8 << 20, 0), "room for removals");
        assert!(!reserve.look(), "what was kept is for removals only");
        disk.lock().unwrap().0 = 15 << 20;
        assert!(!reserve.look(), "not kept only to be released again at once");
        disk.lock().unwrap().0 = 16 << 20;
        assert!(reserve.look());
        assert_eq!(*disk.lock().unwrap(), (8 << 20, 8 << 20));
        assert!(reserve.look(), "with the reserve kept, the rest is for all");
    }

    #[test]
    fn a_store_that_starts_on_a_full_disk_uses_what_an_earlier_run_kept() {
        let disk: Disk = Arc::new(Mutex::new((0, 8 << 20)));
        assert!(!Reserve::new(Box::new(Modelled(disk.clone()))).look());
        assert_eq!(*disk.lock().unwrap(), (8 << 20, 0));
    }
}
