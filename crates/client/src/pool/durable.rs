//! The durable lengths of an open file's data files, as far as a client knows them. The client reports them
//! to the manager. So a lost or truncated data file is not mistaken for one that was never written.

use std::sync::Arc;

use outcore_core::{Durable, Error, ErrorKind, IoReply, IoRequest, Layout};

use crate::pool::call::Call;

/// The tracked lengths of one open file.
#[derive(Debug, Default)]
pub(crate) struct Tracked {
    /// Minimum durable lengths of the data files, unless somebody has shortened the file since.
    known: Arc<Durable>,
    /// Number of shortenings when the manager last answered, if none was running. Only then may this client
    /// report durable lengths.
    cuts: Option<u64>,
    /// Changes whenever this client shortens the file.
    turn: u64,
    /// Number of calls of this client that are shortening the file.
    cutting: u32,
}

/// The durable state of a data file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DataEnd {
    /// Length in bytes.
    pub(crate) length: u64,
    pub(crate) generation: u64,
}

impl DataEnd {
    /// The larger of both numbers each.
    pub(crate) fn max(self, other: Self) -> Self {
        Self { length: self.length.max(other.length), generation: self.generation.max(other.generation) }
    }
}

/// A data file that is shorter than its durable length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Short {
    pub(crate) entry: u64,
    pub(crate) need: u64,
    pub(crate) have: u64,
}

impl Tracked {
    pub(crate) fn new(durable: Durable) -> Self {
        let mut tracked = Self::default();
        tracked.learn(durable);
        tracked
    }

    fn learn(&mut self, durable: Durable) {
        self.cuts = (durable.cuts == durable.cuts_done).then_some(durable.cuts);
        self.known = Arc::new(durable);
    }

    /// The turn of a sync that starts now; `None` while this client shortens the file.
    pub(crate) fn turn(&self) -> Option<u64> {
        (self.cutting == 0).then_some(self.turn)
    }

    /// Records the durable length and the generation of each data file after a sync that started in `turn`. Returns
    /// news for the manager: the number of shortenings, and the state of the data files.
    pub(crate) fn synced(&mut self, turn: Option<u64>, ends: &[DataEnd]) -> Option<(u64, Vec<DataEnd>)> {
        let cuts = self.cuts.filter(|_| turn.is_some() && turn == self.turn())?;
        let before: Vec<DataEnd> = (0..ends.len()).map(|entry| self.end_of(entry as u64)).collect();
        let now: Vec<DataEnd> = before.iter().zip(ends).map(|(before, end)| before.max(*end)).collect();
        if now == before {
            return None;
        }
        let known = Arc::make_mut(&mut self.known);
        known.lengths = now.iter().map(|end| end.length).collect();
        known.generations = now.iter().map(|end| end.generation).collect();
        Some((cuts, now))
    }

    /// The known state of a data file.
    pub(crate) fn end_of(&self, entry: u64) -> DataEnd {
        let of = |numbers: &[u64]| numbers.get(entry as usize).copied().unwrap_or(0);
        DataEnd { length: of(&self.known.lengths), generation: of(&self.known.generations) }
    }

    /// Adds the lengths and the generations that the manager knows.
    pub(crate) fn add(&mut self, durable: Durable) {
        if durable.cuts != self.known.cuts {
            return self.was_cut(Arc::new(durable));
        }
        let known = Arc::make_mut(&mut self.known);
        let lists = [&mut known.lengths, &mut known.generations];
        for (known, now) in lists.into_iter().zip([durable.lengths, durable.generations]) {
            known.resize(known.len().max(now.len()), 0);
            known.iter_mut().zip(now).for_each(|(known, now)| *known = now.max(*known));
        }
    }

    /// The data files of some calls that are known to have later generations than the calls named.
    pub(crate) fn later_than(&self, asked_of: &AskedOf) -> Vec<u64> {
        let named = asked_of.entries.iter().zip(&asked_of.generations);
        let later = named.filter(|&(&entry, named)| self.end_of(entry).generation > *named);
        later.map(|(&entry, _)| entry).collect()
    }

    /// Starts a shortening by this client. `durable` is the manager's reply to `BeginCut`.
    pub(crate) fn cut_begins(&mut self, durable: Durable) {
        self.turn += 1;
        self.cutting += 1;
        self.known = Arc::new(durable);
        self.cuts = None;
    }

    /// Ends a shortening, successful or not. `durable` is the manager's reply to `EndCut`.
    pub(crate) fn cut_ends(&mut self, durable: Option<Durable>) {
        self.cutting -= 1;
        // With another number, another client has shortened the file meanwhile.
        if let Some(durable) = durable.filter(|durable| durable.cuts == self.known.cuts) {
            self.learn(durable);
        }
    }

    /// The known lengths. An answer must agree with the lengths known when its request was sent.
    fn known(&self) -> Arc<Durable> {
        self.known.clone()
    }

    /// The data files of some calls, with the lengths known now. `compared` is the number of restarts up to which the
    /// known generations hold.
    pub(crate) fn asked_of<B>(&self, calls: &[Call<B>], compared: u64) -> AskedOf {
        let is_sync = calls.iter().any(|call| matches!(call.request, IoRequest::Sync { .. }));
        let (entries, generations) = calls.iter().map(|call| (call.entry, call.generation)).unzip();
        let mut asked_of = AskedOf { entries, generations, is_sync, known: self.known(), compared: None };
        if self.later_than(&asked_of).is_empty() {
            asked_of.compared = Some(compared);
        }
        asked_of
    }

    /// Records that another client has shortened the file, as the manager reports.
    pub(crate) fn was_cut(&mut self, durable: Arc<Durable>) {
        if durable.cuts > self.known.cuts {
            self.known = durable;
            self.cuts = None;
        }
    }
}

/// The data files of some calls, and their lengths known at that time. The answers are checked against them.
pub(crate) struct AskedOf {
    pub(crate) entries: Vec<u64>,
    /// The generation that each call names.
    generations: Vec<u64>,
    pub(crate) is_sync: bool,
    /// Number of restarts after which the calls still name the generations that the manager knew. `None` if later
    /// ones were learned before the calls were sent.
    pub(crate) compared: Option<u64>,
    pub(crate) known: Arc<Durable>,
}

impl AskedOf {
    /// The first data file whose answer is shorter than its durable length.
    pub(crate) fn short(&self, replies: &[IoReply]) -> Option<Short> {
        let length = |reply: &IoReply| match reply {
            IoReply::Absent => 0,
            IoReply::Length(length) | IoReply::Synced { length, .. } => *length,
            _ => u64::MAX,
        };
        let seen = self.entries.iter().zip(replies).map(|(&entry, reply)| (entry, length(reply)));
        short(&self.known, seen)
    }

    /// Whether the caller must query the manager. An absent data file may mean that the file was removed. A
    /// short one may mean that the file was shortened, or that data are lost. A sync ignores absent data
    /// files unless they are too short.
    pub(crate) fn is_in_doubt(&self, replies: &[IoReply]) -> bool {
        (!self.is_sync && replies.contains(&IoReply::Absent)) || self.short(replies).is_some()
    }
}

/// The first data file that is shorter than its durable length.
fn short(known: &Durable, seen: impl IntoIterator<Item = (u64, u64)>) -> Option<Short> {
    seen.into_iter().find_map(|(entry, have)| {
        let need = known.lengths.get(entry as usize).copied().unwrap_or(0);
        (have < need).then_some(Short { entry, need, have })
    })
}

/// The error for a data file that is shorter than its durable length.
pub(crate) fn lost(path: &str, layout: &Layout, short: Short) -> Error {
    let Short { entry, need, have } = short;
    let server = layout.servers.get(entry as usize).map_or(0, |server| server.0);
    let at = layout
        .stripes
        .offset_of(entry, have)
        .map_or(String::new(), |byte| format!(" (byte {byte} of the file)"));
    Error::new(
        ErrorKind::Corrupt,
        format!(
            "server {server}: data of {path} are lost: need {need} bytes of its data file there, which were durable, have \
             {have}{at}; restore the file from a copy, or remove it, and check the disk"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn durable(lengths: &[u64], cuts: u64, cuts_done: u64) -> Durable {
        Durable { lengths: lengths.to_vec(), cuts, cuts_done, generations: vec![] }
    }

    fn ends(lengths: &[u64]) -> Vec<DataEnd> {
        lengths.iter().map(|&length| DataEnd { length, generation: 0 }).collect()
    }

    fn synced(tracked: &mut Tracked, turn: Option<u64>, lengths: &[u64]) -> Option<(u64, Vec<u64>)> {
        let (cuts, ends) = tracked.synced(turn, &ends(lengths))?;
        Some((cuts, ends.into_iter().map(|end| end.length).collect()))
    }

    #[test]
    fn generations_are_told_and_remembered_until_a_cut() {
        let mut tracked = Tracked::new(durable(&[50, 50], 0, 0));
        let at = |generation| [DataEnd { length: 50, generation }, DataEnd { length: 50, generation: 0 }];
        assert_eq!(tracked.synced(tracked.turn(), &at(3)), Some((0, at(3).to_vec())));
        assert_eq!(tracked.synced(tracked.turn(), &at(2)), None);
        assert_eq!((tracked.end_of(0).generation, tracked.end_of(1).generation), (3, 0));
        tracked.cut_begins(durable(&[4, 4], 1, 0));
        assert_eq!(tracked.end_of(0).generation, 0);
    }

    #[test]
    fn what_the_manager_knows_is_added_until_a_cut() {
        let of = |lengths: &[u64], cuts, generations: &[u64]| Durable {
            generations: generations.to_vec(),
            ..durable(lengths, cuts, cuts)
        };
        let asked_of = |generation| AskedOf {
            entries: vec![0, 1],
            generations: vec![generation; 2],
            is_sync: false,
            known: Arc::default(),
            compared: None,
        };
        let mut tracked = Tracked::new(of(&[9], 1, &[]));
        tracked.add(of(&[5, 8], 1, &[0, 2]));
        assert_eq!((&tracked.known.lengths[..], &tracked.known.generations[..]), (&[9, 8][..], &[0, 2][..]));
        assert_eq!((tracked.later_than(&asked_of(1)), tracked.later_than(&asked_of(2))), (vec![1], vec![]));
        tracked.add(of(&[1, 1], 2, &[3, 3]));
        assert_eq!(tracked.known.lengths, [1, 1]);
        assert_eq!(tracked.later_than(&asked_of(2)), [0, 1]);
        tracked.add(of(&[9, 9], 1, &[7, 7]));
        assert_eq!(tracked.known.generations, [3, 3], "an earlier answer takes nothing back");
    }

    fn sync(tracked: &mut Tracked, ends: &[u64]) -> Option<(u64, Vec<u64>)> {
        synced(tracked, tracked.turn(), ends)
    }

    #[test]
    fn what_a_sync_made_durable_is_told_once() {
        let mut tracked = Tracked::new(durable(&[], 2, 2));
        assert_eq!(sync(&mut tracked, &[0, 0, 0]), None);
        assert_eq!(sync(&mut tracked, &[0, 10, 0]), Some((2, vec![0, 10, 0])));
        assert_eq!(sync(&mut tracked, &[5, 4, 0]), Some((2, vec![5, 10, 0])));
        assert_eq!(sync(&mut tracked, &[5, 10, 0]), None);
        assert_eq!(short(&tracked.known(), [(0, 5), (2, 0)]), None);
        assert_eq!(short(&tracked.known(), [(0, 5), (1, 9)]), Some(Short { entry: 1, need: 10, have: 9 }));
    }

    #[test]
    fn a_sync_that_began_before_a_cut_or_meanwhile_is_not_told() {
        let mut tracked = Tracked::new(durable(&[50, 50, 50], 0, 0));
        let before = tracked.turn();
        tracked.cut_begins(durable(&[4, 4, 4], 1, 0));
        let meanwhile = tracked.turn();
        assert_eq!(short(&tracked.known(), [(0, 4), (1, 4), (2, 4)]), None);
        assert_eq!(sync(&mut tracked, &[50, 50, 50]), None);
        tracked.cut_ends(Some(durable(&[4, 4, 4], 1, 1)));
        for turn in [before, meanwhile] {
            assert_eq!(synced(&mut tracked, turn, &[50, 50, 50]), None);
        }
        assert_eq!(sync(&mut tracked, &[6, 6, 5]), Some((1, vec![6, 6, 5])));
    }

    #[test]
    fn a_cut_that_somebody_else_made_too_or_of_which_nothing_is_known_leaves_nothing_to_tell() {
        for ended in [None, Some(durable(&[4, 4, 4], 3, 2)), Some(durable(&[4, 4, 4], 3, 3))] {
            let mut tracked = Tracked::new(durable(&[], 1, 1));
            tracked.cut_begins(durable(&[], 2, 1));
            tracked.cut_ends(ended);
            assert_eq!(sync(&mut tracked, &[80, 0, 0]), None);
        }
        // Two concurrent shortenings by this client: the first one ends while the other is running.
        let mut tracked = Tracked::new(durable(&[], 0, 0));
        tracked.cut_begins(durable(&[], 1, 0));
        tracked.cut_begins(durable(&[], 2, 0));
        tracked.cut_ends(Some(durable(&[], 2, 1)));
        assert_eq!(sync(&mut tracked, &[80, 0, 0]), None);
        tracked.cut_ends(Some(durable(&[], 2, 2)));
        assert_eq!(sync(&mut tracked, &[80, 0, 0]), Some((2, vec![80, 0, 0])));
    }

    #[test]
    fn who_opens_a_file_that_is_being_shortened_tells_nothing() {
        let mut tracked = Tracked::new(durable(&[], 6, 5));
        assert_eq!(sync(&mut tracked, &[10, 0, 0]), None);
    }

    #[test]
    fn what_others_shortened_is_no_loss() {
        let mut tracked = Tracked::new(durable(&[50], 1, 1));
        tracked.was_cut(Arc::new(durable(&[20], 0, 0)));
        assert!(short(&tracked.known(), [(0, 49)]).is_some(), "what was said earlier takes nothing back");
        tracked.was_cut(Arc::new(durable(&[40], 2, 2)));
        assert_eq!(short(&tracked.known(), [(0, 49)]), None);
        assert_eq!(sync(&mut tracked, &[90]), None);
    }
}
