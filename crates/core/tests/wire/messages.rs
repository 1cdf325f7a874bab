//! Random messages.

use outcore_core::wire::{Challenge, Hello, KeyKind, Proof, Refused, Role, Welcome};
use outcore_core::*;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

fn round_units() -> impl Strategy<Value = Option<u64>> {
    option::of(1..=u64::MAX)
}

fn stripes() -> impl Strategy<Value = Stripes> {
    (1_u64..=1 << 40, 1_u64..=4096, round_units())
        .prop_map(|(unit, count, units)| Stripes::new(unit, count).unwrap().with_round_units(units).unwrap())
}

fn layout() -> impl Strategy<Value = Layout> {
    (1_u64..=1 << 40, vec(any::<u32>().prop_map(ServerId), 1..5), round_units()).prop_map(
        |(unit, servers, units)| Layout::new(unit, servers).unwrap().with_round_units(units).unwrap(),
    )
}

fn target() -> impl Strategy<Value = Target> {
    (any::<u64>(), stripes(), any::<[u64; 2]>()).prop_map(|(handle, stripes, n)| Target {
        handle: Handle(handle),
        stripes,
        entry: n[0],
        generation: n[1],
    })
}

fn grant() -> impl Strategy<Value = Grant> {
    (any::<u64>(), any::<bool>(), any::<u64>(), any::<[u8; 32]>())
        .prop_map(|(handle, write, expires_s, mac)| Grant { handle: Handle(handle), write, expires_s, mac })
}

pub fn regions() -> impl Strategy<Value = Regions> {
    let level =
        (0_u64..9, any::<u32>()).prop_map(|(count, step)| Level { count, step_bytes: u64::from(step) });
    let nested = (any::<u32>(), any::<u16>(), vec(level, 0..4)).prop_map(|(offset, run, levels)| Nested {
        offset: u64::from(offset),
        run_bytes: u64::from(run),
        levels,
    });
    vec(nested, 0..6).prop_map(|parts| Regions::new(parts).unwrap())
}

pub fn error() -> impl Strategy<Value = Error> {
    (0..ErrorKind::ALL.len(), any::<String>()).prop_map(|(i, message)| Error::new(ErrorKind::ALL[i], message))
}

fn collective() -> impl Strategy<Value = CollectiveSpec> {
    let numbers = || vec(any::<u64>(), 0..4);
    let distribution = prop_oneof![
        Just(Distribution::Whole),
        Just(Distribution::Block),
        any::<u64>().prop_map(Distribution::Cyclic)
    ];
    let area = (numbers(), numbers()).prop_map(|(start, shape)| ElementBox { start, shape });
    let schema = prop_oneof![
        (numbers(), vec(distribution, 0..4)).prop_map(|(mesh, dims)| MemorySchema::Mesh { mesh, dims }),
        vec(vec(area, 0..3), 0..3).prop_map(MemorySchema::Boxes),
        regions().prop_map(MemorySchema::Own),
    ];
    let order = prop_oneof![
        Just(ChunkOrder::RowMajor),
        Just(ChunkOrder::ColumnMajor),
        Just(ChunkOrder::Hilbert),
        Just(ChunkOrder::ZOrder),
        numbers().prop_map(ChunkOrder::Blocks),
    ];
    let grid = (numbers(), numbers(), any::<[u64; 2]>(), any::<[bool; 2]>(), order, option::of(numbers()));
    let grid = grid.prop_map(
        |(shape, chunk, [item_bytes, slot_align_bytes], [is_c, growing], chunk_order, column_places)| {
            GridSpec {
                shape,
                chunk,
                item_bytes,
                storage: if is_c { StorageOrder::C } else { StorageOrder::F },
                chunk_order,
                slot_align_bytes,
                column_places,
                growing,
            }
        },
    );
    (any::<u128>(), any::<[bool; 3]>(), any::<[u64; 5]>(), grid, schema).prop_map(
        |(
            id,
            [write, durable, skips_disk],
            [ranks, shard, patience_s, piece_bytes, round_pieces],
            grid,
            schema,
        )| {
            CollectiveSpec {
                id,
                write,
                ranks,
                grid,
                shard,
                schema,
                patience_s,
                durable,
                skips_disk,
                piece_bytes,
                round_pieces,
            }
        },
    )
}

pub fn io_request() -> impl Strategy<Value = IoRequest> {
    let small = (target(), grant(), regions(), any::<u64>(), any::<bool>());
    (0..20, small, collective(), error()).prop_map(
        |(which, (target, grant, regions, local_length, reserve), spec, error)| match which {
            0 => IoRequest::Read { target, grant, regions },
            1 => IoRequest::Write { target, grant, regions },
            2 => IoRequest::Sync { target, grant },
            3 => IoRequest::Length { target, grant },
            4 => IoRequest::SetLength { target, grant, local_length, reserve },
            5 => IoRequest::Remove { target, grant },
            6 => IoRequest::Status,
            7 => IoRequest::Scrub {
                from: ScrubPlace { handle: target.handle, offset: target.entry },
                most_bytes: local_length,
            },
            8 => IoRequest::DataFiles { after: target.handle, most: local_length },
            16 => IoRequest::Cut { handles: vec![target.handle] },
            17 => IoRequest::Reserve { target, grant, local_length },
            18 => IoRequest::Metrics,
            19 => IoRequest::Spans,
            9 => IoRequest::Inspect { handles: vec![target.handle, grant.handle] },
            10 => IoRequest::Lengths {
                handles: vec![target.handle, Handle(local_length)],
                grant: LengthGrant { expires_s: grant.expires_s, mac: grant.mac },
                targets: vec![target; usize::from(reserve)],
            },
            11 => {
                let array = OfferedArray { address: target.entry, strides: vec![local_length as i64; 2] };
                let memory = reserve.then(|| MemoryOffer {
                    nonce: spec.id,
                    nonce_address: grant.expires_s,
                    arrays: vec![array; 2],
                });
                IoRequest::Join { target, grant, spec: Box::new(spec), rank: local_length, memory }
            }
            12 => IoRequest::Await {
                collective: spec.id,
                rank: spec.ranks,
                round: reserve.then_some(local_length),
            },
            13 => IoRequest::Give {
                collective: spec.id,
                rank: spec.ranks,
                piece: target.entry,
                bytes: local_length,
            },
            14 => IoRequest::Take {
                collective: spec.id,
                rank: spec.ranks,
                piece: target.entry,
                bytes: local_length,
            },
            _ => IoRequest::Abandon { collective: spec.id, rank: spec.ranks, error },
        },
    )
}

pub fn io_reply() -> impl Strategy<Value = IoReply> {
    let status = any::<([u64; 10], bool)>().prop_map(|(n, is_writable)| {
        IoReply::Status(IoStatus {
            free_bytes: n[0],
            requests: n[1],
            bytes_read: n[2],
            bytes_written: n[3],
            damaged_blocks: n[4],
            noted_files: n[5],
            direct_bytes: n[6],
            disk: DiskSize { total_bytes: n[7], total_files: n[8], free_files: n[9] },
            is_writable,
        })
    });
    let file = (any::<u64>(), option::of(any::<u64>()))
        .prop_map(|(handle, length)| DataFile { handle: Handle(handle), length });
    let inspection = (file.clone(), option::of(any::<u64>()), any::<[u64; 3]>(), any::<bool>()).prop_map(
        |(file, sums_length, n, sums_are_old)| Inspection {
            file,
            sums_length,
            summed_past_end: n[0],
            generation: n[1],
            surplus: n[2],
            sums_are_old,
        },
    );
    let damage = (any::<[u64; 3]>(), any::<String>()).prop_map(|(n, what)| Damage {
        handle: Handle(n[0]),
        offset: n[1],
        bytes: n[2],
        what,
    });
    let place = any::<[u64; 2]>().prop_map(|n| ScrubPlace { handle: Handle(n[0]), offset: n[1] });
    let scrubbed = (option::of(place), any::<[u64; 2]>(), vec(damage, 0..4)).prop_map(|(next, n, damage)| {
        IoReply::Scrubbed(Box::new(Scrubbed { next, files: n[0], bytes: n[1], damage }))
    });
    let span = (any::<u8>(), any::<[u64; 4]>()).prop_map(|(name, n)| ServerSpan {
        name,
        start_ns: n[0],
        end_ns: n[1],
        offset: n[2],
        bytes: n[3],
    });
    let spans =
        (any::<[u64; 3]>(), vec(any::<String>(), 0..3), vec(span, 0..3)).prop_map(|(n, names, spans)| {
            let [now_ns, unix_ns, complete_after_ns] = n;
            IoReply::Spans(Box::new(ServerSpans { now_ns, unix_ns, complete_after_ns, names, spans }))
        });
    prop_oneof![
        Just(IoReply::Done),
        Just(IoReply::Absent),
        Just(IoReply::ReadsMemory),
        any::<u64>().prop_map(IoReply::Length),
        any::<[u64; 2]>().prop_map(|n| IoReply::Synced { length: n[0], generation: n[1] }),
        status,
        error().prop_map(IoReply::Failed),
        scrubbed,
        (vec(file, 0..4), any::<bool>()).prop_map(|(files, more)| IoReply::DataFiles { files, more }),
        vec(inspection, 0..4).prop_map(IoReply::Inspected),
        vec(any::<u64>(), 0..4).prop_map(IoReply::Lengths),
        any::<String>().prop_map(IoReply::Metrics),
        spans,
    ]
}

fn hints() -> impl Strategy<Value = Hints> {
    (
        option::of(any::<u64>()),
        option::of(any::<u64>()),
        option::of(any::<u64>()),
        option::of(any::<u64>()),
        vec(any::<(String, String)>(), 0..3),
    )
        .prop_map(|(stripe_unit_bytes, round_units, stripe_count, base, others)| Hints {
            stripe_unit_bytes,
            round_units,
            stripe_count,
            base,
            others,
        })
}

fn lengths() -> impl Strategy<Value = Vec<u64>> {
    vec(any::<u64>(), 0..4)
}

fn inode() -> impl Strategy<Value = Inode> {
    let target = option::of(any::<String>());
    (any::<u64>(), option::of(layout()), any::<[u32; 3]>(), any::<[u64; 4]>(), lengths(), target).prop_map(
        |(handle, layout, numbers, times, lengths, target)| Inode {
            handle: Handle(handle),
            layout,
            owner: numbers[0],
            group: numbers[1],
            mode: numbers[2],
            modified_ns: times[0],
            changed_ns: times[1],
            durable: Durable { generations: lengths.clone(), lengths, cuts: times[2], cuts_done: times[3] },
            target,
        },
    )
}

fn opened() -> impl Strategy<Value = Opened> {
    (inode(), grant()).prop_map(|(inode, grant)| Opened { inode, grant })
}

fn known() -> impl Strategy<Value = Known> {
    prop_oneof![
        inode().prop_map(|inode| Known::Inode(Box::new(inode))),
        opened().prop_map(|file| Known::Removed(Box::new(file))),
        grant().prop_map(Known::Gone),
        Just(Known::Unused),
    ]
}

fn wish() -> impl Strategy<Value = LockWish> {
    let family = prop_oneof![Just(LockFamily::Fcntl), Just(LockFamily::Flock)];
    let kind = prop_oneof![Just(LockKind::None), Just(LockKind::Shared), Just(LockKind::Exclusive)];
    (any::<[u64; 4]>(), any::<u128>(), any::<u32>(), (family, kind), any::<bool>()).prop_map(
        |(n, lease, process, (family, kind), reclaims)| LockWish {
            handle: Handle(n[0]),
            owner: LockOwner { lease, family, number: n[1] },
            process,
            start: n[2],
            end: n[3],
            kind,
            reclaims,
        },
    )
}

pub fn manager_request() -> impl Strategy<Value = ManagerRequest> {
    let path = any::<String>;
    let flag = any::<bool>;
    let number = any::<u32>;
    let handle = || any::<u64>().prop_map(Handle);
    prop_oneof![
        Just(ManagerRequest::Servers),
        Just(ManagerRequest::Time),
        path().prop_map(|path| ManagerRequest::Touch { path }),
        (path(), flag()).prop_map(|(path, write)| ManagerRequest::Open { path, write }),
        (path(), hints(), number()).prop_map(|(path, hints, mode)| ManagerRequest::Create {
            path,
            hints,
            mode
        }),
        (handle(), flag()).prop_map(|(handle, write)| ManagerRequest::Renew { handle, write }),
        path().prop_map(|path| ManagerRequest::Stat { path }),
        (path(), path(), any::<u64>()).prop_map(|(path, after, most)| ManagerRequest::List {
            path,
            after,
            most
        }),
        (path(), number()).prop_map(|(path, mode)| ManagerRequest::MakeDirectory { path, mode }),
        (path(), path()).prop_map(|(path, target)| ManagerRequest::MakeLink { path, target }),
        any::<u128>().prop_map(|lease| ManagerRequest::RenewLease { lease }),
        any::<u128>().prop_map(|lease| ManagerRequest::EndLease { lease }),
        wish().prop_map(|wish| ManagerRequest::SetLock { wish }),
        wish().prop_map(|wish| ManagerRequest::TestLock { wish }),
        (path(), any::<String>(), any::<Vec<u8>>(), any::<u64>())
            .prop_map(|(path, query, after, most)| ManagerRequest::Find { path, query, after, most }),
        (any::<Vec<u8>>(), any::<u64>()).prop_map(|(after, most)| ManagerRequest::Mend { after, most }),
        (path(), flag()).prop_map(|(path, recursive)| ManagerRequest::Remove { path, recursive }),
        (vec(handle(), 0..4), handle(), any::<u64>())
            .prop_map(|(gone, after, most)| ManagerRequest::Orphans { gone, after, most }),
        (path(), path(), option::of(path())).prop_map(|(from, to, kept)| ManagerRequest::Move {
            from,
            to,
            kept
        }),
        (path(), path(), lengths(), option::of(any::<Vec<u8>>())).prop_map(
            |(from, to, durable, description)| ManagerRequest::Rename {
                from,
                to,
                generations: durable.clone(),
                durable,
                description
            }
        ),
        (path(), path()).prop_map(|(from, to)| ManagerRequest::Replace { from, to }),
        (handle(), option::of(any::<u64>()), any::<u64>(), lengths()).prop_map(
            |(handle, modified_ns, cuts, durable)| ManagerRequest::Wrote {
                handle,
                modified_ns,
                cuts,
                generations: durable.clone(),
                durable
            }
        ),
        (handle(), lengths()).prop_map(|(handle, lengths)| ManagerRequest::BeginCut { handle, lengths }),
        handle().prop_map(|handle| ManagerRequest::EndCut { handle }),
        handle().prop_map(|handle| ManagerRequest::Describe { handle }),
        (path(), any::<[Option<u32>; 3]>(), option::of(any::<u64>())).prop_map(|(path, n, modified_ns)| {
            ManagerRequest::SetAttributes { path, mode: n[0], owner: n[1], group: n[2], modified_ns }
        }),
        (path(), hints()).prop_map(|(path, hints)| ManagerRequest::SetDefaultLayout { path, hints }),
        (path(), path()).prop_map(|(path, name)| ManagerRequest::GetExtended { path, name }),
        (path(), path(), option::of(any::<Vec<u8>>()))
            .prop_map(|(path, name, value)| ManagerRequest::SetExtended { path, name, value }),
        (number(), vec(path(), 0..3), handle()).prop_map(|(id, addresses, highest)| {
            ManagerRequest::AddServer { server: ServerAddress { id: ServerId(id), addresses }, highest }
        }),
        (any::<Vec<u8>>(), any::<u64>()).prop_map(|(after, most)| ManagerRequest::Check { after, most }),
        Just(ManagerRequest::NewServer),
        (number(), any::<bool>())
            .prop_map(|(id, undo)| ManagerRequest::Retire { server: ServerId(id), undo }),
        (handle(), any::<u64>()).prop_map(|(after, most)| ManagerRequest::Files { after, most }),
        vec(handle(), 0..4).prop_map(|handles| ManagerRequest::Know { handles }),
        vec(handle(), 0..4).prop_map(|handles| ManagerRequest::Paths { handles }),
        (path(), path(), any::<u64>()).prop_map(|(path, after, most)| ManagerRequest::Look {
            path,
            after,
            most
        }),
    ]
}

pub fn manager_reply() -> impl Strategy<Value = ManagerReply> {
    let server = (any::<u32>(), vec(any::<String>(), 0..3))
        .prop_map(|(id, addresses)| ServerAddress { id: ServerId(id), addresses });
    let named = || (any::<String>(), inode()).prop_map(|(name, inode)| Named { name, inode });
    prop_oneof![
        Just(ManagerReply::Done),
        (any::<u128>(), vec(server, 0..4), vec(any::<u32>().prop_map(ServerId), 0..3))
            .prop_map(|(pool, servers, retired)| ManagerReply::Servers { pool, servers, retired }),
        opened().prop_map(|o| ManagerReply::Opened(Box::new(o))),
        grant().prop_map(ManagerReply::Granted),
        any::<[u64; 2]>().prop_map(|[now_s, run]| ManagerReply::Time { now_s, run }),
        (vec((any::<u64>(), any::<String>()), 0..3), option::of(any::<Vec<u8>>())).prop_map(|(odd, next)| {
            let odd = odd.into_iter().map(|(handle, what)| OddRecord { handle: Handle(handle), what });
            ManagerReply::Checked { odd: odd.collect(), next }
        }),
        inode().prop_map(|i| ManagerReply::Inode(Box::new(i))),
        (vec(named(), 0..4), any::<bool>()).prop_map(|(names, more)| ManagerReply::Names { names, more }),
        vec(opened(), 0..4).prop_map(ManagerReply::Orphans),
        vec(any::<Vec<u8>>(), 0..3).prop_map(ManagerReply::Values),
        error().prop_map(ManagerReply::Failed),
        any::<(u64, bool)>().prop_map(|(seconds, is_new)| ManagerReply::Lease { seconds, is_new }),
        option::of(wish().prop_map(|wish| wish.lock())).prop_map(|l| ManagerReply::Locked(l.flatten())),
        (vec((any::<String>(), inode(), any::<Vec<u8>>()), 0..4), option::of(any::<Vec<u8>>())).prop_map(
            |(hits, next)| {
                let hit = |(path, inode, description)| Hit { path, inode, description };
                ManagerReply::Found { hits: hits.into_iter().map(hit).collect(), next }
            }
        ),
        any::<(String, String)>().prop_map(|(path, target)| ManagerReply::Link { path, target }),
        any::<u32>().prop_map(|id| ManagerReply::NewServer(ServerId(id))),
        (vec(known(), 0..4), any::<bool>()).prop_map(|(known, more)| ManagerReply::Known { known, more }),
        vec(option::of(any::<String>()), 0..4).prop_map(ManagerReply::Paths),
        (vec(named(), 0..4), any::<bool>(), grant()).prop_map(|(names, more, grant)| ManagerReply::Looked {
            names,
            more,
            grant: LengthGrant { expires_s: grant.expires_s, mac: grant.mac }
        }),
    ]
}

pub fn hello() -> impl Strategy<Value = Hello> {
    let key = prop_oneof![Just(KeyKind::Pool), Just(KeyKind::User), Just(KeyKind::Peer)];
    (any::<u128>(), any::<[u8; 32]>(), key, any::<String>(), any::<u32>(), vec(any::<u32>(), 0..4))
        .prop_map(|(client, nonce, key, name, uid, gids)| Hello { client, nonce, key, name, uid, gids })
}

pub fn challenge() -> impl Strategy<Value = Challenge> {
    let role =
        option::of(any::<u32>()).prop_map(|id| id.map_or(Role::Manager, |id| Role::IoServer(ServerId(id))));
    (any::<[u8; 32]>(), role, any::<[u8; 32]>()).prop_map(|(nonce, role, proof)| Challenge {
        nonce,
        role,
        proof,
    })
}

pub fn ends_of_hello() -> impl Strategy<Value = (Proof, Welcome, Refused)> {
    (any::<[u8; 32]>(), any::<u64>(), any::<u32>(), any::<u64>(), error()).prop_map(
        |(proof, payload_bytes, working_ms, incarnation, error)| {
            let incarnation = Incarnation(incarnation);
            (Proof { proof }, Welcome { payload_bytes, working_ms, incarnation }, Refused { error })
        },
    )
}
