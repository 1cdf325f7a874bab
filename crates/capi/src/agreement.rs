//! The processes of a parallel program, and their messages to each other before a collective.

use outcore_core::{ElementBox, Error, ErrorKind, MAX_RANKS, Result};
use serde_json::{Value, json};

use crate::boundary::unusable_time;
use crate::collective::Group;

/// Bytes of the first message of a process: the length of its text, and as much of it as fits.
const HEAD_BYTES: usize = 2048;
/// Bytes of the length.
const LENGTH_BYTES: usize = 8;
/// Longest text of a process. Only messages of another program have a longer one.
const MOST_BYTES: u64 = 1 << 30;
/// Wait for other processes, in seconds, if the caller gives none.
const PATIENCE_S: u64 = 600;
/// The longest such wait.
const MOST_PATIENCE_S: f64 = 4_294_967_296.0;

/// The arguments of one process.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Said {
    /// The function, and the things that it is about.
    pub verb: String,
    pub pool: String,
    pub name: String,
    pub layout: String,
    pub patience_s: u64,
    /// A random number: those of the collectives count from that of process 0.
    pub number: u128,
    /// The byte after the last one of a file that it gives or takes.
    pub end: u64,
    /// The elements of an array that it gives or takes.
    pub boxes: Vec<ElementBox>,
}

impl Group {
    /// The group that C passed, if it is one.
    pub(crate) fn checked(given: Option<&Self>) -> Result<Self> {
        let group = *given.ok_or_else(|| Error::invalid("need a group of processes, have NULL; pass one"))?;
        let Self { rank, size, broadcast, .. } = group;
        if rank >= size || size > MAX_RANKS {
            return Err(Error::invalid(format!(
                "need a rank below a size of at most {MAX_RANKS}, have rank {rank} of {size}; pass those of the communicator"
            )));
        }
        if broadcast.is_none() && size > 1 {
            return Err(Error::invalid("need a function to broadcast, have NULL; pass one"));
        }
        Ok(group)
    }

    /// Whole seconds until a process counts as lost.
    pub(crate) fn patience_s(&self) -> Result<u64> {
        let seconds = self.timeout_s;
        if !(0.0..=MOST_PATIENCE_S).contains(&seconds) {
            return Err(unusable_time(seconds));
        }
        Ok(if seconds == 0.0 { PATIENCE_S } else { seconds.ceil() as u64 })
    }

    fn send(&self, memory: &mut [u8], root: u64) -> Result<()> {
        let Some(broadcast) = self.broadcast.filter(|_| self.size > 1) else { return Ok(()) };
        let bytes = memory.len() as u64;
        // SAFETY: the caller passes a function with these parameters; the memory lives during the call.
        match unsafe { broadcast(self.argument, memory.as_mut_ptr().cast(), bytes, root) } {
            0 => Ok(()),
            code => Err(Error::new(
                ErrorKind::Io,
                format!(
                    "need the message of process {root}, the function to broadcast returned {code} on process {}; look for \
                     the error of its library",
                    self.rank
                ),
            )),
        }
    }

    /// The text that each process passes, in the order of the processes.
    fn gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        (0..self.size).map(|root| self.text_of(mine, root)).collect()
    }

    fn text_of(&self, mine: &[u8], root: u64) -> Result<Vec<u8>> {
        let mut head = vec![0; HEAD_BYTES];
        if root == self.rank {
            let first = mine.len().min(HEAD_BYTES - LENGTH_BYTES);
            head[..LENGTH_BYTES].copy_from_slice(&(mine.len() as u64).to_le_bytes());
            head[LENGTH_BYTES..LENGTH_BYTES + first].copy_from_slice(&mine[..first]);
        }
        self.send(&mut head, root)?;
        let mut text = head.split_off(LENGTH_BYTES);
        let length = head.try_into().map_or(u64::MAX, u64::from_le_bytes);
        if length > MOST_BYTES {
            return Err(unreadable(root));
        }
        let room = text.len();
        text.resize(length as usize, 0);
        if let Some(rest) = text.get_mut(room..).filter(|rest| !rest.is_empty()) {
            if root == self.rank {
                rest.copy_from_slice(&mine[room..]);
            }
            self.send(rest, root)?;
        }
        Ok(text)
    }

    /// Tells the others the arguments of this process, or that it has none to tell. Returns those of all processes. If a
    /// process has an error, or does not agree with process 0, all processes get the same error.
    pub(crate) fn agree(&self, mine: Result<Said>) -> Result<Vec<Said>> {
        let text = match &mine {
            Ok(said) => said.to_json(self.size),
            Err(error) => json!({"failed": [error.kind.name(), error.message]}),
        };
        let texts = self.gather(text.to_string().as_bytes())?;
        let mut all: Vec<Said> = Vec::with_capacity(texts.len());
        for (rank, text) in (0..).zip(&texts) {
            let said = Said::from_json(text, rank, self.size)?;
            if let Some(first) = all.first() {
                first.check_same(&said, rank)?;
            }
            all.push(said);
        }
        Ok(all)
    }
}

fn unreadable(rank: u64) -> Error {
    Error::invalid(format!(
        "need the arguments of process {rank}, have something else; broadcast the same bytes to all processes, which call \
         the same function of one version of the library"
    ))
}

impl Said {
    fn to_json(&self, size: u64) -> Value {
        let boxes: Vec<[&[u64]; 2]> = self.boxes.iter().map(|each| [&*each.start, &*each.shape]).collect();
        json!({
            "size": size, "verb": self.verb, "pool": self.pool, "name": self.name, "layout": self.layout,
            "patience_s": self.patience_s, "number": self.number.to_string(), "end": self.end, "boxes": boxes,
        })
    }

    /// Parses the text of a process, which may be its error.
    fn from_json(text: &[u8], rank: u64, size: u64) -> Result<Self> {
        let said: Value = serde_json::from_slice(text).map_err(|_| unreadable(rank))?;
        if let [Some(kind), Some(message)] = [0, 1].map(|at| said["failed"][at].as_str()) {
            let kind = ErrorKind::ALL.into_iter().find(|known| known.name() == kind);
            return Err(Error::new(kind.unwrap_or(ErrorKind::Io), format!("process {rank}: {message}")));
        }
        let word = |name: &str| said[name].as_str().map(str::to_owned);
        let numbers =
            |value: &Value| -> Option<Vec<u64>> { value.as_array()?.iter().map(Value::as_u64).collect() };
        let one = |value: &Value| Some(ElementBox { start: numbers(&value[0])?, shape: numbers(&value[1])? });
        let parsed = || {
            Some(Self {
                verb: word("verb")?,
                pool: word("pool")?,
                name: word("name")?,
                layout: word("layout")?,
                patience_s: said["patience_s"].as_u64()?,
                number: word("number")?.parse().ok()?,
                end: said["end"].as_u64()?,
                boxes: said["boxes"].as_array()?.iter().map(one).collect::<Option<_>>()?,
            })
        };
        parsed().filter(|_| said["size"] == size).ok_or_else(|| unreadable(rank))
    }

    /// Compares the arguments of process 0 with those of another one.
    fn check_same(&self, other: &Self, rank: u64) -> Result<()> {
        for (what, need, have, is_shown) in [
            ("the call", &self.verb, &other.verb, true),
            ("the pool", &self.pool, &other.pool, false),
            ("the name", &self.name, &other.name, true),
            ("the layout on disk", &self.layout, &other.layout, false),
            ("the timeout", &self.patience_s.to_string(), &other.patience_s.to_string(), true),
        ] {
            if need != have {
                let both = if is_shown { format!(": {have} and {need}") } else { String::new() };
                return Err(Error::invalid(format!(
                    "processes {rank} and 0 do not agree on {what}{both}; call the same function with the same arguments \
                     everywhere, on a handle that is opened again"
                )));
            }
        }
        Ok(())
    }
}
