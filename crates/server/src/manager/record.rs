//! The values of the manager's records: a format byte, then fields. `docs/format.md` has the table.

use outcore_core::wire::{Record, Source, decode, encode};
use outcore_core::{
    Durable, Error, ErrorKind, Handle, Hints, Inode, Layout, Result, ServerAddress, ServerId,
};

use super::keys;

/// In the place of the mark of an optional layout, before the target of a symbolic link.
const LINK: u8 = 2;

/// The format byte of every value.
pub(super) const FORMAT: u8 = 1;

/// In place of a number of units that go round, before generations, in a file without such a number.
const NO_ROUND_UNITS: u64 = u64::MAX;

/// A file, a directory or a symbolic link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    /// The part that clients see.
    pub inode: Inode,
    /// The directory that contains its name.
    pub parent: Handle,
    /// For a directory: the default hints of new files below it.
    pub defaults: Hints,
}

impl Node {
    pub(super) fn is_directory(&self) -> bool {
        self.inode.is_directory()
    }

    pub(super) fn handle(&self) -> Handle {
        self.inode.handle
    }
}

/// A file without a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Orphan {
    /// User id of the user who removed it.
    pub remover: u32,
    /// The record before the removal.
    pub node: Node,
}

/// A directory without a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Detached {
    /// User id of the user who removed it.
    pub remover: u32,
}

/// The addresses of an I/O server; its id is in the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ways(pub Vec<String>);

/// Decodes the next field.
fn next<R: Record>(from: &mut Source<'_>) -> Result<R> {
    R::take(from)
}

/// Encodes a value.
pub(super) fn write<R: Record>(record: &R) -> Vec<u8> {
    let mut bytes = vec![FORMAT];
    bytes.extend(encode(record));
    bytes
}

/// Decodes the value at a key.
pub(super) fn read<R: Record>(key: &[u8], bytes: &[u8]) -> Result<R> {
    let corrupt = |have: &str| {
        Error::new(
            ErrorKind::Corrupt,
            format!(
                "need a record of format {FORMAT} at key {} of the metadata store, have {have}; restore the store from a \
                 backup, or use the version of outcore that wrote it",
                key.escape_ascii()
            ),
        )
    };
    match bytes.split_first() {
        Some((&FORMAT, fields)) => decode(fields).map_err(|error| corrupt(&error.message)),
        Some((other, _)) => Err(corrupt(&format!("format {other}"))),
        None => Err(corrupt("no bytes")),
    }
}

// Encoded field by field, not like the messages of the same names: the protocol may change, records may not.
impl Record for Node {
    fn put(&self, to: &mut Vec<u8>) {
        let Inode { handle, layout, owner, group, mode, modified_ns, changed_ns, durable, target } =
            &self.inode;
        handle.0.put(to);
        self.parent.0.put(to);
        for number in [owner, group, mode] {
            number.put(to);
        }
        modified_ns.put(to);
        changed_ns.put(to);
        if let Some(target) = target {
            LINK.put(to);
            target.put(to);
            return;
        }
        let stripes = layout.as_ref().map(|layout| {
            let servers: Vec<u32> = layout.servers.iter().map(|server| server.0).collect();
            (layout.stripes.unit_bytes(), servers)
        });
        stripes.put(to);
        let round_units = layout.as_ref().and_then(|layout| layout.stripes.round_units());
        if stripes.is_none() {
            let Hints { stripe_unit_bytes, round_units: _, stripe_count, base, others } = &self.defaults;
            for hint in [stripe_unit_bytes, stripe_count, base] {
                hint.put(to);
            }
            others.put(to);
        } else if *durable != Durable::default() || round_units.is_some() {
            let Durable { lengths, cuts, cuts_done, generations } = durable;
            lengths.put(to);
            cuts.put(to);
            cuts_done.put(to);
            if !generations.is_empty() {
                round_units.unwrap_or(NO_ROUND_UNITS).put(to);
                generations.put(to);
            } else if let Some(units) = round_units {
                units.put(to);
            }
        }
    }

    fn take(from: &mut Source<'_>) -> Result<Self> {
        let (handle, parent) = (Handle(u64::take(from)?), Handle(u64::take(from)?));
        let (owner, group, mode) = (u32::take(from)?, u32::take(from)?, u32::take(from)?);
        let (modified_ns, changed_ns) = (u64::take(from)?, u64::take(from)?);
        let (mut layout, mut target) = (None, None);
        match u8::take(from)? {
            0 => {}
            1 => {
                let (unit, servers) = next::<(u64, Vec<u32>)>(from)?;
                layout = Some(Layout::new(unit, servers.into_iter().map(ServerId).collect())?);
            }
            LINK => target = Some(next::<String>(from)?),
            other => {
                return Err(Error::new(ErrorKind::Corrupt, format!("{other} as the kind of a name")));
            }
        }
        // Nothing follows for a file without reported lengths whose units are all distributed, nor in records of
        // earlier versions.
        let mut durable = Durable::default();
        if let (Some(round), false) = (&mut layout, from.is_empty()) {
            durable.lengths = next(from)?;
            (durable.cuts, durable.cuts_done) = (next(from)?, next(from)?);
            if !from.is_empty() {
                let units: u64 = next(from)?;
                if units != NO_ROUND_UNITS {
                    round.stripes = round.stripes.with_round_units(Some(units))?;
                }
                // Nothing follows in records of earlier versions.
                if !from.is_empty() {
                    durable.generations = next(from)?;
                }
            } else if durable == Durable::default() {
                return Err(Error::new(ErrorKind::Corrupt, "nothing follows, in so many bytes"));
            }
        }
        let defaults = match (&layout, &target) {
            (Some(_), _) | (_, Some(_)) => Hints::default(),
            (None, None) => Hints {
                stripe_unit_bytes: next(from)?,
                round_units: None,
                stripe_count: next(from)?,
                base: next(from)?,
                others: next(from)?,
            },
        };
        Ok(Self {
            inode: Inode { handle, layout, owner, group, mode, modified_ns, changed_ns, durable, target },
            parent,
            defaults,
        })
    }
}

impl Record for Orphan {
    fn put(&self, to: &mut Vec<u8>) {
        self.remover.put(to);
        self.node.put(to);
    }

    fn take(from: &mut Source<'_>) -> Result<Self> {
        Ok(Self { remover: u32::take(from)?, node: Node::take(from)? })
    }
}

impl Record for Detached {
    fn put(&self, to: &mut Vec<u8>) {
        self.remover.put(to);
    }

    fn take(from: &mut Source<'_>) -> Result<Self> {
        Ok(Self { remover: u32::take(from)? })
    }
}

impl Record for Ways {
    fn put(&self, to: &mut Vec<u8>) {
        self.0.put(to);
    }

    fn take(from: &mut Source<'_>) -> Result<Self> {
        Ok(Self(next(from)?))
    }
}

/// Decodes an I/O server from its key and value.
pub(super) fn server(key: &[u8], value: &[u8]) -> Result<ServerAddress> {
    let Ways(addresses) = read(key, value)?;
    Ok(ServerAddress { id: server_in(key)?, addresses })
}

/// The id of an I/O server from its key.
pub(super) fn server_in(key: &[u8]) -> Result<ServerId> {
    keys::server_in(key).ok_or_else(|| {
        Error::new(
            ErrorKind::Corrupt,
            format!(
                "need a server's id of 4 bytes, have the key {}; restore the store from a backup",
                key.escape_ascii()
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::answers::Note;
    use super::*;
    use proptest::prelude::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn file() -> Node {
        let layout = Layout::new(1 << 20, vec![ServerId(2), ServerId(0)]).unwrap();
        let inode = Inode {
            handle: Handle(0x0102),
            layout: Some(layout),
            owner: 1000,
            group: 100,
            mode: 0o640,
            modified_ns: 7,
            changed_ns: 8,
            durable: Durable::default(),
            target: None,
        };
        Node { inode, parent: Handle(1), defaults: Hints::default() }
    }

    fn durable() -> Node {
        let mut node = file();
        node.inode.durable =
            Durable { lengths: vec![0x10_0000, 9], cuts: 3, cuts_done: 2, ..Durable::default() };
        node
    }

    fn ending() -> Node {
        let mut node = file();
        node.inode.layout = Some(node.inode.layout.unwrap().with_round_units(Some(2)).unwrap());
        node
    }

    fn directory() -> Node {
        let mut node = file();
        node.inode.layout = None;
        node.defaults.stripe_count = Some(4);
        node.defaults.others = vec![("a".into(), "b".into())];
        node
    }

    fn link() -> Node {
        let mut node = file();
        node.inode.layout = None;
        node.inode.target = Some("../a".into());
        node
    }

    /// A line of `docs/format.md`. A change of these bytes needs another format number.
    fn line(name: &str) -> &'static str {
        let page = include_str!("../../../../docs/format.md");
        let (_, golden) = page.split_once("<!-- golden: records of the manager -->").unwrap();
        golden.lines().find_map(|line| line.strip_prefix(name)).unwrap()
    }

    #[test]
    fn bytes_are_those_of_the_page() {
        let (head, stripes, hints) = (line("both "), line("file "), line("directory "));
        let lengths = line("durable ");
        let page = |text: &str| text.replace(' ', "");
        assert_eq!(hex(&write(&file())), page(head) + &page(stripes));
        assert_eq!(hex(&write(&durable())), page(head) + &page(stripes) + &page(lengths));
        let (nothing, units) = ("00".repeat(24), line("round "));
        assert_eq!(hex(&write(&ending())), page(head) + &page(stripes) + &nothing + &page(units));
        let both = Node { inode: Inode { durable: durable().inode.durable, ..ending().inode }, ..ending() };
        assert_eq!(hex(&write(&both)), page(head) + &page(stripes) + &page(lengths) + &page(units));
        let mut newer = both.clone();
        newer.inode.durable.generations = vec![5, 0];
        let generations = line("generations ");
        let lines = page(head) + &page(stripes) + &page(lengths);
        assert_eq!(hex(&write(&newer)), lines.clone() + &page(units) + &page(generations));
        newer.inode.layout = file().inode.layout;
        assert_eq!(hex(&write(&newer)), lines + &"ff".repeat(8) + &page(generations));
        assert_eq!(read::<Node>(b"", &write(&newer)), Ok(newer));
        assert_eq!(hex(&write(&directory())), page(head) + &page(hints));
        assert_eq!(hex(&write(&link())), page(head) + &page(line("link ")));
        assert_eq!(hex(&write(&Detached { remover: 5 })), "0105000000");
        let orphan = hex(&write(&Orphan { remover: 5, node: file() }));
        assert_eq!(orphan, "0105000000".to_owned() + &page(head)[2..] + &page(stripes));
        let ways = write(&Ways(vec!["tcp:a:1".into()]));
        assert_eq!(hex(&ways), page("01 0100000000000000 0700000000000000") + &hex(b"tcp:a:1"));
        assert_eq!(hex(&write(&7_u64)), "010700000000000000");
    }

    #[test]
    fn a_note_of_a_request_is_that_of_the_page() {
        let note = Note { number: 3, uid: 5, at_s: 7, made: Some(Handle(258)) };
        let numbers = "01 0300000000000000 05000000 0700000000000000";
        assert_eq!(hex(&write(&note)), format!("{numbers} 01 0201000000000000").replace(' ', ""));
        let none = Note { made: None, ..note };
        assert_eq!(hex(&write(&none)), format!("{numbers} 00").replace(' ', ""));
        assert_eq!(read::<Note>(b"k", &write(&none)).unwrap(), none);
    }

    #[test]
    fn what_was_written_is_read() {
        for node in [file(), durable(), ending(), directory(), link()] {
            assert_eq!(read::<Node>(b"k", &write(&node)).unwrap(), node);
            let orphan = Orphan { remover: 9, node };
            assert_eq!(read::<Orphan>(b"k", &write(&orphan)).unwrap(), orphan);
        }
        let found = server(b"s\0\0\x01\x02", &write(&Ways(vec!["unix:/x".into()]))).unwrap();
        assert_eq!(found, ServerAddress { id: ServerId(258), addresses: vec!["unix:/x".into()] });
        assert_eq!(server(b"s\0", &write(&Ways(vec![]))).unwrap_err().kind, ErrorKind::Corrupt);
    }

    #[test]
    fn other_bytes_are_corrupt() {
        let whole = write(&directory());
        for length in 0..whole.len() {
            assert_eq!(read::<Node>(b"k", &whole[..length]).unwrap_err().kind, ErrorKind::Corrupt);
        }
        let mut later = whole.clone();
        later[0] = 2;
        assert!(read::<Node>(b"k", &later).unwrap_err().message.contains("have format 2"));
        let mut longer = whole;
        longer.push(0);
        assert_eq!(read::<Node>(b"k", &longer).unwrap_err().kind, ErrorKind::Corrupt);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_record_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut value = vec![FORMAT];
            value.extend(bytes);
            for result in [read::<Node>(b"k", &value).map(|node| write(&node)),
                           read::<Orphan>(b"k", &value).map(|orphan| write(&orphan)),
                           read::<Ways>(b"k", &value).map(|ways| write(&ways))] {
                match result {
                    Ok(again) => prop_assert_eq!(&again, &value),
                    Err(error) => prop_assert_eq!(error.kind, ErrorKind::Corrupt),
                }
            }
        }

        #[test]
        fn a_changed_record_is_a_record_or_an_error(
            which in 0..6, at in any::<prop::sample::Index>(), cut in any::<prop::sample::Index>(),
            bit in 0..8, number in prop::option::of(prop::sample::select(vec![0, u64::from(u32::MAX), 1 << 63])),
        ) {
            let whole = match which {
                0 => write(&file()),
                1 => write(&directory()),
                2 => write(&durable()),
                3 => write(&ending()),
                4 => write(&link()),
                _ => write(&Orphan { remover: 5, node: directory() }),
            };
            let mut value = whole.clone();
            let at = 1 + at.index(value.len() - 1);
            match number {
                Some(number) if at + 8 <= value.len() => value[at..at + 8].copy_from_slice(&number.to_le_bytes()),
                Some(_) => value.truncate(1 + cut.index(value.len())),
                None => value[at] ^= 1_u8 << bit,
            }
            let again = match which {
                0..=2 | 4 => read::<Node>(b"k", &value).map(|node| write(&node)),
                _ => read::<Orphan>(b"k", &value).map(|orphan| write(&orphan)),
            };
            match again {
                Ok(again) => prop_assert_eq!(again, value),
                Err(error) => prop_assert_eq!(error.kind, ErrorKind::Corrupt),
            }
        }
    }
}
