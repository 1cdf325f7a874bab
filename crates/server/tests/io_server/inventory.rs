//! The inventory of data files, and their missing parts.

use outcore_core::{DataFile, Disk, ErrorKind, Handle, Inspection, IoReply, IoRequest, Names, OpenMode};
use outcore_server::io_server::{BLOCK_BYTES, Limits, data_path, sums_path};

use crate::world::{World, small_limits};

fn page(world: &mut World, after: u64, most: u64) -> (Vec<DataFile>, bool) {
    match world.ask(IoRequest::DataFiles { after: Handle(after), most }, vec![]).0 {
        IoReply::DataFiles { files, more } => (files, more),
        other => panic!("answered by {other:?}"),
    }
}

fn inspect(world: &mut World, handles: &[u64]) -> Vec<Inspection> {
    let handles = handles.iter().copied().map(Handle).collect();
    match world.ask(IoRequest::Inspect { handles }, vec![]).0 {
        IoReply::Inspected(found) => found,
        other => panic!("answered by {other:?}"),
    }
}

#[test]
fn pages_of_data_files_are_all_of_them_in_their_order() {
    let mut world = World::new(1, small_limits());
    assert_eq!(page(&mut world, 0, 10), (vec![], false));
    let mut expected: Vec<(u64, u64)> = vec![];
    for n in 1..24_u64 {
        let handle = ((n % 5) << 40) | (n * 37 % 256);
        world.write(handle, n, &[1]).unwrap();
        expected.push((handle, n + 1));
    }
    expected.sort_by_key(|(handle, _)| (handle & 0xff, *handle));
    world.disk.replace_small("data/03/notes.txt", b"not ours").unwrap();
    world.disk.replace_small("data/03/0000000000000003", b"").unwrap();
    expected.retain(|(handle, _)| *handle != 3);
    let at = expected.partition_point(|(handle, _)| (handle & 0xff, *handle) < (3, 3));
    expected.insert(at, (3, 0));
    for most in [1, 4, 22, 23, 24, 5000] {
        let (mut found, mut after) = (vec![], 0);
        loop {
            let (files, more) = page(&mut world, after, most);
            assert!(files.len() as u64 <= most && (more || files.len() as u64 <= most));
            after = files.last().map_or(after, |file| file.handle.0);
            found.extend(files.into_iter().map(|file| (file.handle.0, file.length.unwrap())));
            if !more {
                break;
            }
        }
        assert_eq!(found, expected, "in pages of {most}");
    }
}

#[test]
fn what_is_missing_of_a_data_file_is_told() {
    let mut world = World::new(2, small_limits());
    for handle in [1, 2, 3, 4] {
        world.write(handle, 0, &vec![7; 3 * BLOCK_BYTES as usize + 1]).unwrap();
        world.sync(handle).unwrap();
    }
    world.set_length(4, BLOCK_BYTES, false).unwrap();
    world.stop();
    world.disk.remove(&sums_path(Handle(1))).unwrap();
    world.disk.remove(&data_path(Handle(2))).unwrap();
    let cut = OpenMode::Resize { length: 5, reserve: false };
    world.disk.close(world.disk.open(&data_path(Handle(3)), cut).unwrap());
    world.restart();
    let length = 3 * BLOCK_BYTES + 1;
    let of = |handle, length, sums_length, summed_past_end| Inspection {
        file: DataFile { handle: Handle(handle), length },
        sums_length,
        summed_past_end,
        generation: u64::from(length.is_some() && sums_length.is_some()),
        surplus: 0,
        sums_are_old: false,
    };
    let found = inspect(&mut world, &[1, 2, 3, 4, 5]);
    assert_eq!(found[0], of(1, Some(length), None, 0));
    assert_eq!(found[1], of(2, None, Some(4096), 0));
    assert_eq!(found[2], of(3, Some(5), Some(4096), 4 * BLOCK_BYTES));
    assert_eq!(found[3], of(4, Some(BLOCK_BYTES), Some(4096), 0));
    assert_eq!(found[4], of(5, None, None, 0));
    let (files, _) = page(&mut world, 0, 10);
    let second = DataFile { handle: Handle(2), length: None };
    assert_eq!(files[1], second, "checksums alone are listed too");
    let many = IoRequest::Inspect { handles: vec![Handle(1); 1001] };
    assert_eq!(world.done(many, vec![]).unwrap_err().kind, ErrorKind::Invalid);
}

#[test]
fn what_is_missing_is_told_of_files_in_use_too() {
    let mut world = World::new(3, Limits { open_files: 8, ..small_limits() });
    let length = 3 * BLOCK_BYTES + 1;
    for handle in [1, 2, 3, 4, 5] {
        world.write(handle, 0, &vec![7; length as usize]).unwrap();
    }
    world.sync(1).unwrap();
    world.sync(2).unwrap();
    world.disk.remove(&sums_path(Handle(1))).unwrap();
    world.disk.remove(&data_path(Handle(2))).unwrap();
    for handle in [3, 4] {
        let cut = OpenMode::Resize { length: 5, reserve: false };
        world.disk.close(world.disk.open(&data_path(Handle(handle)), cut).unwrap());
        if handle == 3 {
            world.sync(handle).unwrap();
        }
    }
    let found = inspect(&mut world, &[1, 2, 3, 4, 5]);
    let lengths: Vec<_> = found.iter().map(|found| found.file.length).collect();
    assert_eq!(lengths, [Some(length), None, Some(5), Some(5), Some(length)]);
    assert!(found[0].sums_length.is_none() && found[1].sums_length.is_some());
    let past_end: Vec<_> = found[2..].iter().map(|found| found.summed_past_end).collect();
    assert_eq!(past_end, [4 * BLOCK_BYTES, 4 * BLOCK_BYTES, 0], "also by checksums that are in memory only");
}
