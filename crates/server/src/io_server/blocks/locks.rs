//! Locks on blocks of one file: reads share them, a write is exclusive. Each task holds one lock at a time, so
//! there is no deadlock.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use crate::io_server::wait::Slot;

#[derive(Clone)]
struct Claim {
    number: u64,
    blocks: Range<u64>,
    alone: bool,
}

impl Claim {
    fn hinders(&self, other: &Self) -> bool {
        (self.alone || other.alone)
            && self.blocks.start < other.blocks.end
            && other.blocks.start < self.blocks.end
    }
}

#[derive(Default)]
struct Table {
    next: u64,
    held: Vec<Claim>,
    waiting: VecDeque<(Claim, Slot<()>)>,
}

/// The locks on the blocks of one file.
#[derive(Clone, Default)]
pub(crate) struct Locks(Rc<RefCell<Table>>);

/// Releases the blocks when dropped.
pub(crate) struct Lock {
    table: Rc<RefCell<Table>>,
    number: u64,
}

impl Locks {
    /// Locks `blocks`, after every conflicting earlier claim, held or waiting.
    pub async fn take(&self, blocks: Range<u64>, alone: bool) -> Lock {
        let (number, turn) = {
            let mut table = self.0.borrow_mut();
            let number = table.next;
            table.next += 1;
            let claim = Claim { number, blocks, alone };
            let hindered = table.held.iter().any(|held| held.hinders(&claim))
                || table.waiting.iter().any(|(waiting, _)| waiting.hinders(&claim));
            if hindered {
                let slot = Slot::new();
                table.waiting.push_back((claim, slot.clone()));
                (number, Some(slot))
            } else {
                table.held.push(claim);
                (number, None)
            }
        };
        if let Some(turn) = turn {
            turn.await;
        }
        Lock { table: self.0.clone(), number }
    }

    /// The blocks that are locked exclusively.
    pub fn held_alone(&self) -> Vec<Range<u64>> {
        self.0.borrow().held.iter().filter(|claim| claim.alone).map(|claim| claim.blocks.clone()).collect()
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let mut turns = Vec::new();
        {
            let table = &mut *self.table.borrow_mut();
            table.held.retain(|claim| claim.number != self.number);
            let mut still: VecDeque<(Claim, Slot<()>)> = VecDeque::new();
            for (claim, slot) in table.waiting.drain(..) {
                let hindered = table.held.iter().any(|held| held.hinders(&claim))
                    || still.iter().any(|(waiting, _)| waiting.hinders(&claim));
                if hindered {
                    still.push_back((claim, slot));
                } else {
                    table.held.push(claim);
                    turns.push(slot);
                }
            }
            table.waiting = still;
        }
        for turn in turns {
            turn.give(());
        }
    }
}
