//! Names in a pool with the lengths of their files, page by page, and servers that do not answer.

use outcore_client::{Listed, Silent};
use outcore_core::{Error, ErrorKind, Hints, OpenMode, Volume};

use crate::pool_link::pool;

#[test]
fn the_lengths_of_many_files_are_one_question_to_each_server() {
    let (pool, link) = pool(2);
    let name = |i: u64| format!("f{i:02}");
    for i in 0..40 {
        pool.create_with(&name(i), 100 * i, false, Hints::default()).unwrap();
    }
    pool.make_directory("f99").unwrap();
    link.take_log();
    let listed = pool.list("").unwrap();
    // This manager returns two names per page. The last page has one, which is not a file.
    assert_eq!(link.take_log().len(), 20 * 2);
    let found: Vec<_> = listed.iter().map(|e| (e.name.clone(), e.is_directory, e.length)).collect();
    let expected = (0..40).map(|i| (name(i), false, 100 * i)).chain([(String::from("f99"), true, 0)]);
    assert_eq!(found, expected.collect::<Vec<_>>());
    *link.faults.lock().unwrap() = [Some(Error::new(ErrorKind::Io, "a server"))].into();
    assert_eq!(pool.list("").unwrap_err().kind, ErrorKind::Io);
    assert_eq!(pool.list("f01").unwrap_err().kind, ErrorKind::Invalid, "a file");
}

#[test]
fn a_page_of_names_is_one_message_to_each_server() {
    let (pool, link) = pool(3);
    for (number, name) in ["d/a", "d/b", "d/c", "d/e/f"].iter().enumerate() {
        pool.open(name, OpenMode::Create { length: 130 * number as u64, reserve: false }).unwrap();
    }
    link.take_log();
    let (page, more) = pool.page("d", "", 9, &Silent::default()).unwrap();
    assert_eq!(link.take_log().len(), 3, "the servers of two files, both on all three");
    let lengths = |page: &[Listed]| -> Vec<(String, u64)> {
        page.iter().map(|listed| (listed.name.clone(), listed.length)).collect()
    };
    assert_eq!((lengths(&page), more), (vec![("a".into(), 0), ("b".into(), 130)], true));
    let (page, more) = pool.page("d", "b", 9, &Silent::default()).unwrap();
    assert_eq!((lengths(&page), more), (vec![("c".into(), 260), ("e".into(), 0)], false));
    assert!(page[1].inode.layout.is_none());
    let (page, more) = pool.page("d/c", "", 9, &Silent::default()).unwrap();
    assert_eq!((lengths(&page), more), (vec![(String::new(), 260)], false));
}

#[test]
fn what_a_server_does_not_say_is_said_of_the_names_that_it_is_about() {
    let (pool, link) = pool(2);
    pool.make_directory("d/e").unwrap();
    pool.open("d/f", OpenMode::Create { length: 130, reserve: false }).unwrap();
    let error = Error::new(ErrorKind::Io, "no connection");
    let faults = || *link.faults.lock().unwrap() = [None, Some(error.clone())].into();
    faults();
    let (page, _) = pool.page("d", "", 9, &Silent::default()).unwrap();
    let each = page.iter().map(|listed| (listed.name.as_str(), listed.length, listed.unknown.clone()));
    assert_eq!(each.collect::<Vec<_>>(), [("e", 0, None), ("f", 100, Some(error.clone()))]);
    // The same listing does not query the server again.
    let silent = Silent::default();
    faults();
    pool.page("d", "", 9, &silent).unwrap();
    link.take_log();
    let (page, _) = pool.page("d", "e", 9, &silent).unwrap();
    assert_eq!((page[0].length, page[0].unknown.clone()), (100, Some(error.clone())));
    assert_eq!(link.take_log().len(), 1, "the other server");
    faults();
    assert_eq!(pool.list("d").unwrap_err(), error);
    faults();
    let status: Vec<_> = pool.status().into_iter().map(|(id, status)| (id.0, status.is_ok())).collect();
    assert_eq!(status, [(0, true), (1, false)]);
}
