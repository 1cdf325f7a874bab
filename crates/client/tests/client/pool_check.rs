//! Checks of a pool, over a link in memory.

use outcore_core::{Error, ErrorKind, Handle, Hints, ServerId};

use crate::pool_link::pool;

#[test]
fn data_that_nobody_owns_is_removed_with_new_grants_where_servers_refuse_them() {
    let (pool, link) = pool(2);
    for name in ["1", "2", "3"] {
        pool.create_with(name, 300, false, Hints::default()).unwrap();
    }
    link.lose("1");
    link.lose("3");
    let denied = || Some(Error::new(ErrorKind::Denied, "the grant is over"));
    let handles: Vec<Handle> = (1..=4).map(Handle).collect();
    let strays = [Handle(1), Handle(3)];

    link.faults.lock().unwrap().extend([denied(), denied(), denied(), None, denied(), denied(), denied()]);
    link.take_log();
    assert_eq!(pool.remove_strays(ServerId(0), handles.clone()).unwrap(), strays);
    assert_eq!(link.take_log(), vec![(0, "remove", 0); 8]);

    // A user without the right gets an error.
    link.faults.lock().unwrap().extend([denied(), denied(), denied(), denied()]);
    let error = pool.remove_strays(ServerId(1), handles).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Denied);
    assert_eq!(link.take_log(), vec![(1, "remove", 0); 4]);
}
