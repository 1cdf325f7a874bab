//! Random concurrent calls with crashes in between, compared with a model.

use outcore_core::crash_disk::Random;
use outcore_core::{ErrorKind, IoReply, IoRequest, Level, Nested, Regions};
use outcore_server::io_server::{BLOCK_BYTES, Limits};

use crate::world::{
    Faults, MAX, World, grant, noise, read_request, removal_grant, small_limits, target, write_request,
};

const HANDLES: u64 = 3;

/// The effect of a write on a file, byte by byte.
#[derive(Clone)]
struct Written {
    bytes: Vec<(u32, u8)>,
    /// Whether its regions ascend, so that it writes each block once.
    ascends: bool,
    /// Whether the disk was full, so that any part of the bytes may be there.
    failed: bool,
}

impl Written {
    fn is_whole(&self) -> bool {
        self.ascends && !self.failed
    }
}

/// The model of one file: its contents, its durable contents, and the writes since.
#[derive(Clone)]
struct Model {
    now: Vec<u8>,
    durable: Vec<u8>,
    since: Vec<Written>,
    /// The length. After a crash, which allows several lengths, it is the server's answer.
    length: u64,
}

impl Model {
    fn new() -> Self {
        let zeros = vec![0; MAX as usize];
        Self { now: zeros.clone(), durable: zeros, since: vec![], length: 0 }
    }
}

fn regions(random: &mut Random) -> Regions {
    let mut parts = vec![];
    for _ in 0..1 + random.below(2) {
        let run_bytes = match random.below(4) {
            0 => 1 + random.below(700),
            1 => 1 + random.below(3 * BLOCK_BYTES),
            2 => BLOCK_BYTES * (1 + random.below(6)),
            _ => 1 + random.below(20_000),
        };
        let count = 1 + random.below(5);
        let step_bytes = run_bytes + random.below(100_000);
        let reach = (count - 1) * step_bytes + run_bytes;
        let (count, reach) = if reach > MAX { (1, run_bytes) } else { (count, reach) };
        let mut offset = random.below(MAX - reach + 1);
        if random.below(3) == 0 {
            offset -= offset % BLOCK_BYTES;
        }
        parts.push(Nested { offset, run_bytes, levels: vec![Level { count, step_bytes }] });
    }
    Regions::new(parts).unwrap()
}

fn spread(regions: &Regions, bytes: &[u8]) -> Vec<(u32, u8)> {
    let mut out = Vec::with_capacity(bytes.len());
    for run in regions.runs() {
        out.extend((0..run.length).map(|i| ((run.offset + i) as u32, bytes[(run.at + i) as usize])));
    }
    out
}

struct Run {
    world: World,
    models: Vec<Model>,
    seed: u64,
}

enum Asked {
    Read { file: usize, regions: Regions },
    Write { file: usize, number: usize },
    Sync { file: usize },
}

impl Run {
    fn new(seed: u64) -> Self {
        Self {
            world: World::new(seed, Limits { removals: 0, ..small_limits() }),
            models: vec![Model::new(); HANDLES as usize],
            seed,
        }
    }

    /// Makes some concurrent calls, perhaps with a crash.
    fn batch(&mut self) {
        let mut asked: Vec<(u64, Asked)> = vec![];
        let mut writes: Vec<Vec<Written>> = vec![vec![]; HANDLES as usize];
        for _ in 0..1 + self.world.random.below(6) {
            let file = self.world.random.below(HANDLES) as usize;
            let handle = file as u64 + 1;
            match self.world.random.below(8) {
                0..=3 => {
                    let regions = regions(&mut self.world.random);
                    let bytes = noise(&mut self.world.random, regions.total_bytes() as usize);
                    let number = writes[file].len();
                    let bytes_written = spread(&regions, &bytes);
                    let ascends = bytes_written.windows(2).all(|pair| pair[0].0 < pair[1].0);
                    writes[file].push(Written { bytes: bytes_written, ascends, failed: false });
                    let call = self.world.call(write_request(handle, regions), bytes);
                    asked.push((call, Asked::Write { file, number }));
                }
                4..=6 => {
                    let regions = regions(&mut self.world.random);
                    let place = vec![0xEE; regions.total_bytes() as usize];
                    let call = self.world.call(read_request(handle, regions.clone()), place);
                    asked.push((call, Asked::Read { file, regions }));
                }
                _ => {
                    let request = IoRequest::Sync { target: target(handle), grant: grant(handle) };
                    asked.push((self.world.call(request, vec![]), Asked::Sync { file }));
                }
            }
            for _ in 0..self.world.random.below(6) {
                self.world.turn();
            }
        }
        let crash = self.world.random.below(3) == 0;
        if crash {
            for _ in 0..self.world.random.below(60) {
                self.world.turn();
            }
        } else {
            self.world.run();
        }
        for (call, what) in asked {
            let answer = self.world.answer(call);
            assert!(crash || answer.is_some(), "seed {}: a call was not answered", self.seed);
            let Some((reply, buffer)) = answer else { continue };
            let is_full = matches!(&reply, IoReply::Failed(e) if e.message.contains("injected"));
            let is_good = matches!(reply, IoReply::Done | IoReply::Absent | IoReply::Synced { .. });
            assert!(is_good || is_full, "seed {}: {reply:?}", self.seed);
            match what {
                Asked::Read { file, regions } if !is_full => {
                    let found = spread(&regions, &buffer.to_vec());
                    self.check(file, &found, &writes[file], "read");
                }
                Asked::Sync { file } if !is_full => {
                    // Every write answered before this batch is durable.
                    let model = &mut self.models[file];
                    model.durable = model.now.clone();
                    model.since.clear();
                }
                Asked::Read { .. } | Asked::Sync { .. } => {}
                Asked::Write { file, number } => writes[file][number].failed = is_full,
            }
        }
        for (file, writes) in writes.iter().enumerate() {
            self.models[file].since.extend(writes.iter().cloned());
        }
        self.settle(crash, &writes);
    }

    /// Checks that each byte is unchanged, or comes from a write of the batch.
    fn check(&self, file: usize, found: &[(u32, u8)], writes: &[Written], what: &str) {
        let before = &self.models[file].now;
        let wrong: Vec<_> = found.iter().filter(|(at, byte)| before[*at as usize] != *byte).collect();
        if wrong.is_empty() {
            return;
        }
        let mut possible = std::collections::HashSet::new();
        possible.extend(writes.iter().flat_map(|written| written.bytes.iter().copied()));
        for (at, byte) in wrong {
            assert!(possible.contains(&(*at, *byte)), "seed {}: {what}, byte {at} is {byte}", self.seed);
        }
    }

    /// Reads everything back, perhaps after a crash, and compares it with the model. The model then adopts the
    /// bytes read.
    fn settle(&mut self, crash: bool, writes: &[Vec<Written>]) {
        if crash {
            self.world.crash();
        }
        let faults = std::mem::take(&mut self.world.faults);
        for (file, writes) in writes.iter().enumerate() {
            let handle = file as u64 + 1;
            let found = self.world.read(handle, 0, MAX);
            let found = found.unwrap_or_else(|e| panic!("seed {}: {e}", self.seed));
            let model = &self.models[file];
            let (base, changes) =
                if crash { (&model.durable, &model.since[..]) } else { (&model.now, &writes[..]) };
            let mut is_good: Vec<bool> = found.iter().zip(base).map(|(a, b)| a == b).collect();
            if !crash {
                // Bytes that only one write covers must come from it.
                let mut covered = vec![0_u8; MAX as usize];
                for written in changes {
                    for (at, _) in &written.bytes {
                        covered[*at as usize] += 1;
                        is_good[*at as usize] &= written.failed;
                    }
                }
                self.one_or_the_other(&found, changes, &covered);
            }
            for (at, byte) in changes.iter().flat_map(|written| &written.bytes) {
                is_good[*at as usize] |= found[*at as usize] == *byte;
            }
            let bad = is_good.iter().position(|good| !good);
            assert_eq!(bad, None, "seed {}: file {handle}, crash {crash}", self.seed);
            let model = &mut self.models[file];
            if crash {
                model.durable.clone_from(&found);
                model.since.clear();
                model.length = self.world.length(handle);
            }
            model.now = found;
        }
        self.world.faults = faults;
    }

    /// Checks that two concurrent writes to the same bytes of a block leave the bytes of one of them, not a
    /// mixture.
    fn one_or_the_other(&self, found: &[u8], writes: &[Written], covered: &[u8]) {
        for (number, first) in writes.iter().enumerate() {
            let mut mine = vec![None; MAX as usize];
            for (at, byte) in &first.bytes {
                mine[*at as usize] = Some(*byte);
            }
            for second in writes[number + 1..].iter().filter(|second| first.is_whole() && second.is_whole()) {
                // For each block: whether the first write, and whether the second, explains the bytes found.
                let mut blocks = std::collections::HashMap::new();
                for (at, byte) in &second.bytes {
                    let at = *at as usize;
                    if let (Some(other), 2) = (mine[at], covered[at]) {
                        let state = blocks.entry(at as u64 / BLOCK_BYTES).or_insert((true, true));
                        state.0 &= found[at] == other;
                        state.1 &= found[at] == *byte;
                    }
                }
                assert!(blocks.values().all(|(a, b)| *a || *b), "seed {}: mixed {blocks:?}", self.seed);
            }
        }
    }

    fn resize(&mut self) {
        let file = self.world.random.below(HANDLES) as usize;
        let handle = file as u64 + 1;
        let length = self.world.random.below(MAX);
        let reserve = self.world.random.below(2) == 0;
        self.world.set_length(handle, length, reserve).unwrap();
        let model = &mut self.models[file];
        let gone = (length..MAX).map(|at| (at as u32, 0)).collect();
        model.now[length as usize..].fill(0);
        model.since.push(Written { bytes: gone, ascends: true, failed: false });
        assert_eq!(self.world.length(handle), length, "seed {}", self.seed);
    }

    fn remove(&mut self) {
        let file = self.world.random.below(HANDLES) as usize;
        self.world.remove(file as u64 + 1).unwrap();
        self.models[file] = Model::new();
    }
}

/// The seeds to run: the range in `SEEDS=first..last`, or the given number.
fn seeds(most: u64) -> std::ops::Range<u64> {
    match std::env::var("SEEDS").ok().and_then(|text| {
        let (first, last) = text.split_once("..")?;
        Some(first.parse().ok()?..last.parse().ok()?)
    }) {
        Some(seeds) => seeds,
        None => 0..most,
    }
}

fn simulate(seed: u64, faults: Faults) {
    let mut run = Run::new(seed);
    run.world.run();
    run.world.faults = faults;
    for _ in 0..12 {
        let kind = run.world.random.below(10);
        match kind {
            0 if faults.full_of == 0 => run.resize(),
            1 => run.remove(),
            _ => run.batch(),
        }
    }
}

#[test]
fn a_server_does_what_the_model_does_whatever_crashes() {
    for seed in seeds(30) {
        simulate(seed, Faults::default());
    }
}

#[test]
fn a_server_on_a_disk_that_stops_short_does_too() {
    for seed in seeds(10) {
        simulate(seed, Faults { short_of: 4, ..Faults::default() });
    }
}

#[test]
fn a_server_on_a_disk_that_is_full_now_and_then_does_too() {
    for seed in seeds(10) {
        simulate(seed, Faults { full_of: 12, ..Faults::default() });
    }
}

#[test]
fn whatever_comes_at_once_is_answered_and_leaves_no_damage() {
    let (mut done, mut gone) = (0, 0);
    for seed in seeds(60) {
        let mut world = World::new(seed, small_limits());
        let mut calls = vec![];
        for round in 0..4 {
            for _ in 0..20 {
                // Removed files stay removed, so each round uses other files.
                let handle = 1 + 2 * u64::from(round) + world.random.below(2);
                let regions = regions(&mut world.random);
                let bytes = vec![round; regions.total_bytes() as usize];
                let (target, grant) = (target(handle), grant(handle));
                let local_length = world.random.below(MAX);
                let (request, bytes) = match world.random.below(8) {
                    0 => (IoRequest::Remove { target, grant: removal_grant(handle) }, vec![]),
                    1 => (IoRequest::SetLength { target, grant, local_length, reserve: true }, vec![]),
                    2 => (IoRequest::Sync { target, grant }, vec![]),
                    3 => (IoRequest::Length { target, grant }, vec![]),
                    4 | 5 => (read_request(handle, regions), bytes),
                    _ => (write_request(handle, regions), bytes),
                };
                calls.push(world.call(request, bytes));
                for _ in 0..world.random.below(4) {
                    world.turn();
                }
            }
            if round == 2 {
                world.crash();
                calls.clear();
            }
        }
        world.run();
        for call in calls {
            match world.answer(call).unwrap_or_else(|| panic!("seed {seed}: not answered")).0 {
                // The removal of a file may overtake queued requests.
                IoReply::Failed(error) => {
                    assert_eq!(error.kind, ErrorKind::NotFound, "seed {seed}: {error}");
                    gone += 1;
                }
                IoReply::Done | IoReply::Absent | IoReply::Length(_) | IoReply::Synced { .. } => done += 1,
                other => panic!("seed {seed}: {other:?}"),
            }
        }
        for handle in 1..9 {
            world.read(handle, 0, MAX).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        }
        world.crash();
        for handle in 1..3 {
            world.read(handle, 0, MAX).unwrap_or_else(|e| panic!("seed {seed}, after a crash: {e}"));
        }
    }
    assert!(done > 2 * gone && gone > 0, "{done} done, {gone} too late");
}

#[test]
fn a_sync_says_no_more_than_is_durable_then() {
    for seed in seeds(500) {
        let mut world = World::new(seed, small_limits());
        world.write(1, 0, &[1; 100]).unwrap();
        let write = |world: &mut World, at: u64| {
            let regions = Regions::contiguous(at, 10_000).unwrap();
            world.call(write_request(1, regions), vec![2; 10_000]);
        };
        write(&mut world, 5000);
        for _ in 0..world.random.below(20) {
            world.turn();
        }
        let sync = world.call(IoRequest::Sync { target: target(1), grant: grant(1) }, vec![]);
        write(&mut world, 20_000);
        let reply = loop {
            match world.answer(sync) {
                Some((reply, _)) => break reply,
                None => assert!(world.turn(), "seed {seed}: a call was not answered"),
            }
        };
        let IoReply::Synced { length: said, .. } = reply else { panic!("seed {seed}: {reply:?}") };
        world.crash();
        let have = world.length(1);
        assert!(have >= said, "seed {seed}: {have} bytes are left of {said}");
    }
}
