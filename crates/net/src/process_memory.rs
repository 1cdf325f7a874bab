//! Reads the memory of another process on this machine by a system call: one copy, and no socket.

use std::io;

use outcore_core::{Buffer, ByteRun, Error, ErrorKind, PeerMemory, Result};
use outcore_memory::Region;

use crate::socket::{MAX_VECTORS, PeerIds, advance};
use crate::system::own_uid;

/// A process whose memory this process may try to read. The system decides (`process_vm_readv(2)`, and the
/// section on access in `ptrace(2)`).
#[derive(Debug)]
pub(crate) struct ProcessMemory(libc::pid_t);

impl ProcessMemory {
    /// The process at the other end of a UNIX socket, as the system identified it at the connection.
    ///
    /// Only a process of the same user is accepted. A privileged server may read all memory. If a process
    /// connected and then executed another program, such as `su`, the server would write the secrets of that
    /// program to a file.
    pub(crate) fn of(peer: &PeerIds) -> Option<Self> {
        // The number is 0 if the process is in a PID namespace that is invisible here.
        (peer.uid == own_uid() && peer.pid > 0).then_some(Self(peer.pid))
    }
}

impl PeerMemory<Region> for ProcessMemory {
    fn read(&self, runs: &[ByteRun], buffer: &mut Region, places: &[ByteRun]) -> Result<()> {
        let theirs = |run: &ByteRun| libc::iovec {
            iov_base: std::ptr::with_exposed_provenance_mut(run.start as usize),
            iov_len: run.bytes as usize,
        };
        let ours = places.iter().flat_map(|place| {
            let (start, bytes) = (place.start as usize, place.bytes as usize);
            let end = start.checked_add(bytes);
            assert!(end.is_some_and(|end| end <= buffer.len()), "{place:?} in {} bytes", buffer.len());
            let part = buffer.part(start, bytes);
            let pointers: Vec<(*mut u8, usize)> = part.pointers().collect();
            pointers
        });
        let mut ours: Vec<libc::iovec> =
            ours.map(|(start, bytes)| libc::iovec { iov_base: start.cast(), iov_len: bytes }).collect();
        let mut theirs: Vec<libc::iovec> = runs.iter().map(theirs).collect();
        let (mut ours, mut theirs) = (ours.as_mut_slice(), theirs.as_mut_slice());
        loop {
            advance(&mut ours, 0);
            advance(&mut theirs, 0);
            if ours.is_empty() {
                return Ok(());
            }
            // SAFETY: the system writes to `ours` only, and to at most as many vectors as exist. They lie in
            // the buffer, as the assertion checked, which is borrowed until the end of the call; its bytes
            // belong to this read. Addresses in `theirs` belong to the other process: the system fails if it
            // has no such memory.
            let moved = unsafe {
                libc::process_vm_readv(
                    self.0,
                    ours.as_ptr(),
                    ours.len().min(MAX_VECTORS) as libc::c_ulong,
                    theirs.as_ptr(),
                    theirs.len().min(MAX_VECTORS) as libc::c_ulong,
                    0,
                )
            };
            match moved {
                // The call stops at missing memory, and the next call fails there.
                1.. => {
                    advance(&mut ours, moved as usize);
                    advance(&mut theirs, moved as usize);
                }
                0 => return Err(Error::new(ErrorKind::Io, "less was offered than is to be read")),
                _ => return Err(self.failed(&io::Error::last_os_error())),
            }
        }
    }
}

impl ProcessMemory {
    fn failed(&self, error: &io::Error) -> Error {
        let pid = self.0;
        let why = match error.raw_os_error() {
            Some(libc::ESRCH) => format!("process {pid} of this machine has ended; start it again"),
            Some(libc::EFAULT) => {
                format!(
                    "process {pid} of this machine has no memory where it says; leave arrays where they are until the call \
                         returns"
                )
            }
            _ => format!(
                "the system does not let it be read any more ({error}); set OUTCORE_DIRECT_MEMORY=off"
            ),
        };
        Error::new(ErrorKind::Io, why)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Child, Command, Stdio};

    use outcore_core::Gather;

    use super::*;

    fn of(pid: u32) -> ProcessMemory {
        ProcessMemory::of(&PeerIds { pid: pid as i32, uid: own_uid(), gids: vec![] }).unwrap()
    }

    fn run(start: u64, bytes: u64) -> ByteRun {
        ByteRun { start, bytes }
    }

    #[test]
    fn runs_of_any_length_come_to_their_places() {
        // More runs than one system call takes, on both sides, and cut differently.
        let memory: Vec<u8> = (0..60_000_u32).map(|i| (i * 7 % 251) as u8).collect();
        let start = memory.as_ptr().expose_provenance() as u64;
        let runs: Vec<ByteRun> = (0..3000).rev().map(|i| run(start + 20 * i, 1 + i % 10)).collect();
        let bytes: u64 = runs.iter().map(|run| run.bytes).sum();
        let places: Vec<ByteRun> = (0..bytes / 3).map(|i| run(4 * i, 3)).collect();
        assert_eq!(bytes % 3, 0);
        let mut buffer = Region::allocate(4 * bytes as usize / 3).unwrap();
        buffer.copy_in(0, &vec![0xEE; 4 * bytes as usize / 3]);
        of(std::process::id()).read(&runs, &mut buffer, &places).unwrap();
        let mut found = vec![0; buffer.len()];
        buffer.copy_out(0, &mut found);
        let picked = runs.iter().flat_map(|run| {
            let at = (run.start - start) as usize;
            memory[at..at + run.bytes as usize].to_vec()
        });
        let picked: Vec<u8> = picked.collect();
        for (i, four) in found.chunks(4).enumerate() {
            assert_eq!(four[..3], picked[3 * i..3 * i + 3], "{i}");
            assert_eq!(four[3], 0xEE, "what is between places stays");
        }
    }

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        let memory = [1_u8; 100];
        let start = memory.as_ptr().expose_provenance() as u64;
        let mut buffer = Region::allocate(100).unwrap();
        for runs in [
            vec![run(0, 100)],
            vec![run(start, 50), run(u64::MAX - 10, 50)],
            vec![run(start, 50), run(1 << 62, 50)],
        ] {
            let error = of(std::process::id()).read(&runs, &mut buffer, &[run(0, 100)]).unwrap_err();
            assert!(error.message.contains("no memory where it says"), "{error}");
        }
        let few = [run(start, 99)];
        let error = of(std::process::id()).read(&few, &mut buffer, &[run(0, 100)]).unwrap_err();
        assert!(error.message.contains("less was offered"), "{error}");
    }

    struct Sleeper(Child);

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_process_that_has_ended_is_named() {
        let mut child = Sleeper(Command::new("cat").stdin(Stdio::piped()).spawn().unwrap());
        let pid = child.0.id();
        child.0.kill().unwrap();
        child.0.wait().unwrap();
        let mut buffer = Region::allocate(8).unwrap();
        let error = of(pid).read(&[run(4096, 8)], &mut buffer, &[run(0, 8)]).unwrap_err();
        assert!(error.message.contains(&format!("process {pid} of this machine has ended")), "{error}");
    }

    #[test]
    fn memory_of_another_process_is_read_as_it_is() {
        // The other process prints the address of its arguments (proc(5): field 48 of `stat`).
        let script = "cut -d' ' -f48 /proc/$$/stat; read line";
        let mut command = Command::new("sh");
        command.args(["-c", script, "a-name-of-its-own"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = Sleeper(command.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address: u64 = line.trim().parse().unwrap();
        let expected = format!("sh\0-c\0{script}\0a-name-of-its-own\0");
        let mut buffer = Region::allocate(expected.len()).unwrap();
        let bytes = expected.len() as u64;
        let read = of(child.0.id()).read(&[run(address, bytes)], &mut buffer, &[run(0, bytes)]);
        if let Err(error) = &read {
            // Yama may allow only descendants, and a child is one; seccomp may forbid the call.
            assert!(error.message.contains("does not let it be read"), "{error}");
            return;
        }
        let mut found = vec![0; expected.len()];
        buffer.copy_out(0, &mut found);
        assert_eq!(String::from_utf8(found).unwrap(), expected);
        child.0.stdin.take().unwrap().write_all(b"\n").unwrap();
    }

    #[test]
    fn processes_of_others_and_those_that_are_not_seen_are_left_alone() {
        let uid = own_uid();
        assert!(ProcessMemory::of(&PeerIds { pid: 0, uid, gids: vec![] }).is_none());
        assert!(ProcessMemory::of(&PeerIds { pid: 7, uid: uid + 1, gids: vec![] }).is_none());
    }
}
