//! Collectives whose processes, grants or servers are refused.

use std::sync::Arc;

use outcore_client::PoolVolume;
use outcore_core::{Distribution, ErrorKind, MemorySchema, OpenMode, StorageOrder, Volume};

use crate::collective::{arrays, local, mesh, part, place, spec, together};

#[test]
fn who_may_not_write_does_not_join() {
    let place = place(&[8, 8], &[8, 8], StorageOrder::C);
    let file = place.pool.open("u", OpenMode::Read).unwrap();
    let schema = MemorySchema::Mesh { mesh: vec![], dims: vec![Distribution::Whole; 2] };
    let part = part(&spec(&place, true, 1, &schema), 0, vec![local(&[8, 8], &[0, 1], 0)]);
    let error = place.pool.collective(file, &part, &mut || Ok(())).unwrap_err();
    assert_eq!(error.kind, ErrorKind::ReadOnly, "{error}");
    assert!(place.link.servers.joined.lock().unwrap().is_empty());
}

#[test]
fn who_joins_with_a_grant_that_is_over_joins_again_with_a_new_one() {
    for (refused, is_joined) in [(3, true), (100, false)] {
        let place = place(&[64, 64], &[16, 64], StorageOrder::C);
        let (schema, owned) = mesh(64, 64);
        let spec = spec(&place, true, 4, &schema);
        let parts: Vec<_> = (0..4).map(|rank| part(&spec, rank, arrays(&owned[rank], &[0, 1], 0))).collect();
        *place.link.servers.refused_joins.lock().unwrap() = refused;
        for result in together(&place, &parts) {
            assert_eq!(
                result.map(|_| ()).map_err(|error| error.kind),
                if is_joined { Ok(()) } else { Err(ErrorKind::Denied) }
            );
        }
        assert!(place.link.names.renewals() >= 1);
    }
}

#[test]
fn a_collective_compares_the_servers_after_a_restart() {
    for is_older in [false, true] {
        let place = place(&[64, 64], &[16, 64], StorageOrder::C);
        let schema = MemorySchema::Mesh { mesh: vec![], dims: vec![Distribution::Whole; 2] };
        let collective = |write| {
            let part = part(&spec(&place, write, 1, &schema), 0, vec![local(&[64, 64], &[0, 1], 0)]);
            together(&place, &[part]).remove(0)
        };
        collective(true).unwrap();
        // Another client syncs the file, and tells the manager.
        let other = PoolVolume::new(place.link.clone(), Arc::new(|| 1)).unwrap();
        other.append_small("u", &[1; 10]).unwrap();
        other.tell_written();
        if is_older {
            place.link.names.put_back(0, other.stat("u").unwrap().handle, 0);
        } else {
            place.link.names.restart(0);
        }
        let read = collective(false);
        if is_older {
            let error = read.unwrap_err();
            assert!(error.message.contains("need generation 1, have 0"), "{error}");
        } else {
            read.unwrap();
        }
    }
}
