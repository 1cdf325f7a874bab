//! A naive model of a manager: a tree of maps in memory.

use std::collections::{BTreeMap, BTreeSet};

use outcore_core::{ErrorKind, Handle, Hints};
use outcore_server::manager::User;

#[derive(Clone, Debug)]
pub struct Entry {
    pub handle: Option<Handle>,
    pub owner: u32,
    pub group: u32,
    pub mode: u32,
    pub modified_ns: u64,
    pub changed_ns: u64,
    pub extended: BTreeMap<String, Vec<u8>>,
    /// The entries of a directory; `None` for a file or link.
    pub below: Option<BTreeMap<String, Entry>>,
    /// The target of a link. In place of its content, requests get the error `Loop`.
    pub target: Option<String>,
    /// For a file, its number of servers; for a directory, its default.
    pub stripe_count: Option<u64>,
}

pub struct Model {
    pub top: Entry,
    /// Files without a name, and the users who removed them.
    pub orphans: BTreeMap<Handle, u32>,
    pub servers: u64,
    pub handles: BTreeSet<Handle>,
}

pub type Done<T = ()> = Result<T, ErrorKind>;

const R: u32 = 4;
const W: u32 = 2;
const X: u32 = 1;

impl Entry {
    fn new(who: &User, parent_group: u32, mode: u32, now: u64, is_directory: bool) -> Self {
        Self {
            handle: None,
            owner: who.uid,
            group: *who.gids.first().unwrap_or(&parent_group),
            mode,
            modified_ns: now,
            changed_ns: now,
            extended: BTreeMap::new(),
            below: is_directory.then(BTreeMap::new),
            target: None,
            stripe_count: None,
        }
    }

    /// POSIX.1-2017, base definitions, section 4.5, word by word.
    fn may(&self, who: &User, wanted: u32) -> bool {
        if who.is_root {
            true
        } else if self.owner == who.uid {
            (self.mode / 0o100) & wanted == wanted
        } else if who.gids.contains(&self.group) {
            (self.mode / 0o10) & wanted == wanted
        } else {
            self.mode & wanted == wanted
        }
    }

    fn need(&self, who: &User, wanted: u32) -> Done {
        if self.may(who, wanted) { Ok(()) } else { Err(ErrorKind::Denied) }
    }

    fn is_directory(&self) -> bool {
        self.below.is_some()
    }

    fn no_link(&self) -> Done {
        if self.target.is_some() { Err(ErrorKind::Loop) } else { Ok(()) }
    }

    fn children(&mut self) -> &mut BTreeMap<String, Entry> {
        self.below.as_mut().expect("a directory")
    }

    fn touch(&mut self, now: u64) {
        self.modified_ns = now;
        self.changed_ns = now;
    }

    fn unstuck(&self, entry: &Entry, who: &User) -> Done {
        let stuck =
            self.mode & 0o1000 != 0 && !who.is_root && who.uid != entry.owner && who.uid != self.owner;
        if stuck { Err(ErrorKind::Denied) } else { Ok(()) }
    }

    fn removable(&self, who: &User) -> Done {
        let children = self.below.as_ref().expect("a directory");
        if !children.is_empty() {
            self.need(who, R | W | X)?;
        }
        for child in children.values() {
            self.unstuck(child, who)?;
            if child.is_directory() {
                child.removable(who)?;
            }
        }
        Ok(())
    }

    fn files(&self) -> Vec<Handle> {
        match &self.below {
            None if self.target.is_some() => vec![],
            None => vec![self.handle.expect("a file has its handle")],
            Some(below) => below.values().flat_map(Entry::files).collect(),
        }
    }
}

fn split(path: &str) -> (Vec<&str>, &str) {
    let mut names: Vec<&str> = path.split('/').collect();
    let last = names.pop().expect("a name");
    (names, last)
}

impl Model {
    pub fn new(servers: u64) -> Self {
        let who = User { uid: 0, gids: vec![0], is_root: true };
        let mut top = Entry::new(&who, 0, 0o777, 0, true);
        top.handle = Some(Handle(1));
        Self { top, orphans: BTreeMap::new(), servers, handles: BTreeSet::from([Handle(1)]) }
    }

    fn directory(&mut self, who: &User, names: &[&str], make: Option<(u32, u64)>) -> Done<&mut Entry> {
        let mut at = &mut self.top;
        at.need(who, X)?;
        for &name in names {
            if !at.children().contains_key(name) {
                let (mode, now) = make.ok_or(ErrorKind::NotFound)?;
                at.need(who, W)?;
                let fresh = Entry::new(who, at.group, mode, now, true);
                at.touch(now);
                at.children().insert(name.to_owned(), fresh);
            }
            at = at.children().get_mut(name).expect("there");
            at.no_link()?;
            if !at.is_directory() {
                return Err(ErrorKind::NotFound);
            }
            at.need(who, X)?;
        }
        Ok(at)
    }

    pub fn find(&mut self, who: &User, path: &str) -> Done<&mut Entry> {
        if path.is_empty() {
            return Ok(&mut self.top);
        }
        let (above, last) = split(path);
        self.directory(who, &above, None)?.children().get_mut(last).ok_or(ErrorKind::NotFound)
    }

    /// Performs an action wholly or not at all, with a copy to restore.
    fn whole<T>(&mut self, action: impl FnOnce(&mut Self) -> Done<T>) -> Done<T> {
        let before = self.top.clone();
        let result = action(self);
        if result.is_err() {
            self.top = before;
        }
        result
    }

    fn make(&mut self, who: &User, path: &str, mode: u32, now: u64, is_directory: bool) -> Done<&mut Entry> {
        let (above, last) = split(path);
        let parent = self.directory(who, &above, Some((on_the_way(mode), now)))?;
        parent.need(who, W)?;
        if parent.children().contains_key(last) {
            return Err(ErrorKind::Exists);
        }
        let fresh = Entry::new(who, parent.group, mode, now, is_directory);
        parent.touch(now);
        Ok(parent.children().entry(last.to_owned()).or_insert(fresh))
    }

    pub fn create(&mut self, who: &User, path: &str, mode: u32, hints: &Hints, now: u64) -> Done {
        self.whole(|model| {
            let servers = model.servers;
            model.make(who, path, mode, now, false)?;
            let mut count = hints.stripe_count;
            // The nearest default above the file.
            let (above, _) = split(path);
            for depth in (0..=above.len()).rev() {
                let mut at = &model.top;
                for name in &above[..depth] {
                    at = &at.below.as_ref().expect("a directory")[*name];
                }
                count = count.or(at.stripe_count);
            }
            let root = User { uid: 0, gids: vec![], is_root: true };
            model.find(&root, path)?.stripe_count = Some(count.unwrap_or(servers).min(servers));
            Ok(())
        })
    }

    pub fn make_directory(&mut self, who: &User, path: &str, mode: u32, now: u64) -> Done {
        self.whole(|model| model.make(who, path, mode, now, true).map(|_| ()))
    }

    pub fn make_link(&mut self, who: &User, path: &str, target: &str, now: u64) -> Done {
        let (above, _) = split(path);
        self.directory(who, &above, None)?;
        self.make(who, path, 0o777, now, false)?.target = Some(target.to_owned());
        Ok(())
    }

    pub fn open(&mut self, who: &User, path: &str, write: bool) -> Done<Handle> {
        let entry = self.find(who, path)?;
        entry.no_link()?;
        if entry.is_directory() {
            return Err(ErrorKind::Invalid);
        }
        entry.need(who, if write { R | W } else { R })?;
        Ok(entry.handle.expect("a file has its handle"))
    }

    pub fn list(&mut self, who: &User, path: &str) -> Done<Vec<String>> {
        let entry = self.find(who, path)?;
        entry.no_link()?;
        if !entry.is_directory() {
            return Err(ErrorKind::Invalid);
        }
        entry.need(who, R | X)?;
        Ok(entry.children().keys().cloned().collect())
    }

    /// Removes an entry. Its files become orphans.
    pub fn remove(&mut self, who: &User, path: &str, recursive: bool, now: u64) -> Done {
        let (above, last) = split(path);
        let parent = self.directory(who, &above, None)?;
        let entry = parent.children().get(last).ok_or(ErrorKind::NotFound)?.clone();
        parent.need(who, W)?;
        parent.unstuck(&entry, who)?;
        if entry.is_directory() {
            if recursive {
                entry.removable(who)?;
            } else if !entry.below.as_ref().expect("a directory").is_empty() {
                return Err(ErrorKind::Exists);
            }
        }
        parent.children().remove(last);
        parent.touch(now);
        self.orphans.extend(entry.files().into_iter().map(|handle| (handle, who.uid)));
        Ok(())
    }

    /// Renames an entry. With `all`, a directory may replace another together with its entries.
    pub fn rename(&mut self, who: &User, from: &str, to: &str, all: bool, now: u64) -> Done {
        let orphans = self.whole(|model| {
            let ((from_above, from_last), (to_above, to_last)) = (split(from), split(to));
            let old_parent = model.directory(who, &from_above, None)?;
            let mut entry = old_parent.children().get(from_last).ok_or(ErrorKind::NotFound)?.clone();
            let may_leave = old_parent.need(who, W);
            let is_unstuck = old_parent.unstuck(&entry, who);
            if entry.is_directory() && to.starts_with(&format!("{from}/")) {
                return Err(ErrorKind::Invalid);
            }
            if all && from.starts_with(&format!("{to}/")) {
                return Err(ErrorKind::Invalid);
            }
            let mode = if entry.target.is_some() { 0o600 } else { entry.mode };
            let new_parent = model.directory(who, &to_above, Some((on_the_way(mode), now)))?;
            if from == to {
                return Ok(vec![]);
            }
            may_leave?;
            new_parent.need(who, W)?;
            is_unstuck?;
            if entry.is_directory() && from_above != to_above {
                entry.need(who, W)?;
            }
            let mut orphans = vec![];
            if let Some(target) = new_parent.children().get(to_last).cloned() {
                new_parent.unstuck(&target, who)?;
                match (&entry.below, &target.below) {
                    (None, None) => orphans = target.files(),
                    (Some(_), Some(below)) if below.is_empty() => {}
                    (Some(_), Some(_)) if all => {
                        target.removable(who)?;
                        orphans = target.files();
                    }
                    _ => return Err(ErrorKind::Exists),
                }
                if all && entry.is_directory() {
                    entry.stripe_count = target.stripe_count;
                }
            }
            entry.changed_ns = now;
            new_parent.children().insert(to_last.to_owned(), entry);
            new_parent.touch(now);
            let root = User { uid: 0, gids: vec![], is_root: true };
            let old_parent = model.directory(&root, &from_above, None)?;
            old_parent.children().remove(from_last);
            old_parent.touch(now);
            Ok(orphans)
        })?;
        self.orphans.extend(orphans.into_iter().map(|handle| (handle, who.uid)));
        Ok(())
    }

    pub fn set_attributes(
        &mut self,
        who: &User,
        path: &str,
        (mode, owner, group, modified_ns): (Option<u32>, Option<u32>, Option<u32>, Option<u64>),
        now: u64,
    ) -> Done {
        let entry = self.find(who, path)?;
        let is_owner = who.is_root || who.uid == entry.owner;
        if is_owner && mode.is_some() {
            entry.no_link()?;
        }
        // 2262-04-11T23:47:16Z is the last time that is set.
        if is_owner && modified_ns.is_some_and(|ns| ns > 9_223_372_036_000_000_000) {
            return Err(ErrorKind::Invalid);
        }
        let group_is_own = group.is_none_or(|group| who.is_root || who.gids.contains(&group));
        let allowed = is_owner
            && (owner.is_none_or(|owner| owner == entry.owner) || who.is_root)
            && (group.is_none_or(|group| group == entry.group) || group_is_own);
        if !allowed {
            return Err(ErrorKind::Denied);
        }
        entry.mode = mode.unwrap_or(entry.mode);
        entry.owner = owner.unwrap_or(entry.owner);
        entry.group = group.unwrap_or(entry.group);
        entry.modified_ns = modified_ns.unwrap_or(entry.modified_ns);
        entry.changed_ns = now;
        Ok(())
    }

    pub fn set_default(&mut self, who: &User, path: &str, stripe_count: Option<u64>, now: u64) -> Done {
        let entry = self.find(who, path)?;
        entry.no_link()?;
        if !entry.is_directory() {
            return Err(ErrorKind::Invalid);
        }
        if !who.is_root && who.uid != entry.owner {
            return Err(ErrorKind::Denied);
        }
        entry.stripe_count = stripe_count;
        entry.changed_ns = now;
        Ok(())
    }

    pub fn get_extended(&mut self, who: &User, path: &str, name: &str) -> Done<Vec<Vec<u8>>> {
        let entry = self.find(who, path)?;
        entry.no_link()?;
        entry.need(who, R)?;
        if name.is_empty() {
            return Ok(entry.extended.keys().map(|name| name.as_bytes().to_vec()).collect());
        }
        entry.extended.get(name).map(|value| vec![value.clone()]).ok_or(ErrorKind::NotFound)
    }

    pub fn set_extended(
        &mut self,
        who: &User,
        path: &str,
        name: &str,
        value: Option<&[u8]>,
        now: u64,
    ) -> Done {
        let entry = self.find(who, path)?;
        entry.no_link()?;
        entry.need(who, W)?;
        match value {
            Some(value) => drop(entry.extended.insert(name.to_owned(), value.to_vec())),
            None => drop(entry.extended.remove(name).ok_or(ErrorKind::NotFound)?),
        }
        entry.changed_ns = now;
        Ok(())
    }

    /// Every entry below the root, by path.
    pub fn paths(&self) -> BTreeMap<String, &Entry> {
        let mut found = BTreeMap::new();
        let mut left = vec![(String::new(), &self.top)];
        while let Some((path, entry)) = left.pop() {
            for (name, child) in entry.below.iter().flatten() {
                let below = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
                left.push((below.clone(), child));
                found.insert(below, child);
            }
        }
        found
    }
}

/// The mode of directories created above a new name, from the new entry's mode.
fn on_the_way(mode: u32) -> u32 {
    (mode | 0o300 | ((mode & 0o444) / 4)) & 0o777
}
