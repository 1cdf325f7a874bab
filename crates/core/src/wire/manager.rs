//! Messages between clients and the manager as bytes.

use crate::wire::record::{Record, Source, choice, structure};
use crate::{
    Durable, FileLock, Hints, Hit, Inode, Known, Layout, LockFamily, LockKind, LockOwner, LockWish,
    ManagerReply, ManagerRequest, Named, OddRecord, Opened, Result, ServerAddress, ServerId,
};

structure!(ServerAddress { id, addresses });
structure!(Hints { stripe_unit_bytes, round_units, stripe_count, base, others });
structure!(Durable { lengths, cuts, cuts_done, generations });
structure!(Inode { handle, layout, owner, group, mode, modified_ns, changed_ns, durable, target });
structure!(Named { name, inode });
structure!(Hit { path, inode, description });
structure!(Opened { inode, grant });
structure!(OddRecord { handle, what });
structure!(LockOwner { lease, family, number });
structure!(FileLock { owner, process, start, end, exclusive });
structure!(LockWish { handle, owner, process, start, end, kind, reclaims });

choice!(LockFamily {
    1 = Fcntl,
    2 = Flock,
});

choice!(LockKind {
    1 = None,
    2 = Shared,
    3 = Exclusive,
});

choice!(ManagerRequest {
    1 = Servers,
    2 = Open { path, write },
    3 = Create { path, hints, mode },
    4 = Renew { handle, write },
    5 = Stat { path },
    6 = List { path, after, most },
    7 = MakeDirectory { path, mode },
    8 = Remove { path, recursive },
    9 = Rename { from, to, durable, generations, description },
    10 = SetAttributes { path, mode, owner, group, modified_ns },
    11 = SetDefaultLayout { path, hints },
    12 = GetExtended { path, name },
    13 = SetExtended { path, name, value },
    14 = Orphans { gone, after, most },
    15 = AddServer { server, highest },
    16 = NewServer,
    17 = Files { after, most },
    18 = Know { handles },
    19 = Paths { handles },
    20 = Look { path, after, most },
    21 = Time,
    22 = Wrote { handle, modified_ns, cuts, durable, generations },
    23 = Touch { path },
    24 = Retire { server, undo },
    25 = BeginCut { handle, lengths },
    26 = EndCut { handle },
    27 = Describe { handle },
    28 = Replace { from, to },
    29 = Check { after, most },
    30 = MakeLink { path, target },
    31 = Move { from, to, kept },
    32 = RenewLease { lease },
    33 = EndLease { lease },
    34 = SetLock { wish },
    35 = TestLock { wish },
    36 = Find { path, query, after, most },
    37 = Mend { after, most },
});

choice!(Known {
    1 = Inode(inode),
    2 = Removed(file),
    3 = Gone(grant),
    4 = Unused,
});

choice!(ManagerReply {
    1 = Done,
    2 = Servers { pool, servers, retired },
    3 = Opened(opened),
    4 = Granted(grant),
    5 = Inode(inode),
    6 = Names { names, more },
    7 = Orphans(files),
    8 = Values(values),
    9 = Failed(error),
    10 = NewServer(id),
    11 = Known { known, more },
    12 = Paths(paths),
    13 = Looked { names, more, grant },
    14 = Time { now_s, run },
    15 = Checked { odd, next },
    16 = Link { path, target },
    17 = Lease { seconds, is_new },
    18 = Locked(excluded),
    19 = Found { hits, next },
});

impl Record for Layout {
    fn put(&self, to: &mut Vec<u8>) {
        self.stripes.unit_bytes().put(to);
        self.stripes.round_units().put(to);
        self.servers.put(to);
    }

    fn take(from: &mut Source<'_>) -> Result<Self> {
        let (unit_bytes, round_units) = (u64::take(from)?, Record::take(from)?);
        Self::new(unit_bytes, Vec::<ServerId>::take(from)?)?.with_round_units(round_units)
    }
}
