//! Splits requests that are too large for one message, and joins the answers of the parts.

use std::sync::{Arc, Mutex, PoisonError};

use outcore_core::wire::MAX_RUNS;
use outcore_core::{Answer, Error, Incarnation, IoReply, Nested, OnAnswer, Regions, Result, Target};
use outcore_memory::Region;

/// Payload bytes that every server accepts in one message.
pub(crate) const MOST_BYTES: u64 = 8 << 20;

/// Larger requests are split into messages of this many bytes, so that a server can work on some while others
/// are in flight.
pub(crate) const PART_BYTES: u64 = 4 << 20;

/// Splits the part of `regions` on the target's entry, in order, into regions of at most `most_bytes` bytes.
/// The part must have `total_bytes` bytes.
pub(crate) fn divide(
    target: &Target,
    regions: &Regions,
    total_bytes: u64,
    most_bytes: u64,
) -> Result<Vec<Regions>> {
    let (mut all, mut parts, mut bytes, mut left) = (Vec::new(), Vec::new(), 0, total_bytes);
    for run in regions.local_runs(target.stripes, target.entry) {
        left = left.checked_sub(run.length).ok_or_else(|| mismatch(total_bytes))?;
        let (mut local, end) = (run.offset, run.offset + run.length);
        while local < end {
            let offset = target
                .stripes
                .offset_of(target.entry, local)
                .ok_or_else(|| Error::invalid("a request reaches past the largest size of a file"))?;
            let run_bytes = (end - local).min(target.stripes.left_in_unit(offset)).min(most_bytes - bytes);
            parts.push(Nested { offset, run_bytes, levels: vec![] });
            local += run_bytes;
            bytes += run_bytes;
            if bytes == most_bytes || parts.len() as u64 == MAX_RUNS {
                all.push(Regions::new(std::mem::take(&mut parts))?);
                bytes = 0;
            }
        }
    }
    if !parts.is_empty() {
        all.push(Regions::new(parts)?);
    }
    if left > 0 { Err(mismatch(total_bytes)) } else { Ok(all) }
}

fn mismatch(total_bytes: u64) -> Error {
    Error::invalid(format!("the regions of a request are not the {total_bytes} bytes of its buffer"))
}

/// Joins the answers of a request's parts.
pub(crate) struct Joined(Arc<Mutex<State>>);

struct State {
    left: usize,
    error: Option<Error>,
    is_absent: bool,
    /// The run that answered so far.
    incarnation: Option<Incarnation>,
    started_ns: u64,
    finished_ns: u64,
    end: Option<(Region, OnAnswer<Region>)>,
}

impl Joined {
    /// Joins `parts` parts; `buffer` is the buffer of the whole request.
    pub(crate) fn new(parts: usize, buffer: Region, done: OnAnswer<Region>) -> Self {
        let end = Some((buffer, done));
        Self(Arc::new(Mutex::new(State {
            left: parts,
            error: None,
            is_absent: false,
            incarnation: None,
            started_ns: u64::MAX,
            finished_ns: 0,
            end,
        })))
    }

    /// The callback for the answer of one part.
    pub(crate) fn part(&self) -> OnAnswer<Region> {
        let joined = self.0.clone();
        Box::new(move |answer: Answer<Region>| {
            // Drop this view, so that the receiver of the whole buffer has the only one.
            drop(answer.buffer);
            let mut state = joined.lock().unwrap_or_else(PoisonError::into_inner);
            state.left -= 1;
            state.started_ns = state.started_ns.min(answer.started_ns);
            state.finished_ns = state.finished_ns.max(answer.finished_ns);
            let before = *state.incarnation.get_or_insert(answer.incarnation);
            if before != answer.incarnation {
                // The parts were executed by several runs, so some may be lost. No single run has all of
                // them.
                state.incarnation = Some(Incarnation::NONE);
            }
            match answer.reply {
                IoReply::Done => {}
                IoReply::Absent => state.is_absent = true,
                IoReply::Failed(error) => drop(state.error.get_or_insert(error)),
                other => {
                    let error = Error::invalid(format!("a server answered {other:?} to a transfer"));
                    state.error.get_or_insert(error);
                }
            }
            if state.left == 0
                && let Some((buffer, done)) = state.end.take()
            {
                let good = if state.is_absent { IoReply::Absent } else { IoReply::Done };
                let reply = state.error.take().map_or(good, IoReply::Failed);
                let (started_ns, finished_ns) = (state.started_ns, state.finished_ns);
                let incarnation = state.incarnation.unwrap_or(Incarnation::NONE);
                drop(state);
                done(Answer { reply, buffer, incarnation, started_ns, finished_ns });
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outcore_core::{Handle, Level, Stripes};
    use proptest::prelude::*;

    fn bytes(regions: &Regions, target: &Target) -> Vec<u64> {
        let runs = regions.local_runs(target.stripes, target.entry);
        runs.flat_map(|run| run.offset..run.offset + run.length).collect()
    }

    proptest! {
        #[test]
        fn parts_are_the_whole_in_its_order(
            parts in prop::collection::vec((0_u64..200, 0_u64..40, 0_u64..4, 0_u64..60), 0..5),
            unit in 1_u64..30, count in 1_u64..5, most in 1_u64..50,
        ) {
            let nested = |&(offset, run_bytes, count, step_bytes): &(u64, u64, u64, u64)| {
                Nested { offset, run_bytes, levels: vec![Level { count, step_bytes }] }
            };
            let regions = Regions::new(parts.iter().map(nested).collect()).unwrap();
            for entry in 0..count {
                let stripes = Stripes::new(unit, count).unwrap();
                let target = Target { handle: Handle(1), stripes, entry, generation: 0 };
                let total = regions.local_bytes(target.stripes, entry);
                prop_assert!(divide(&target, &regions, total + 1, most).is_err());
                prop_assert!(total == 0 || divide(&target, &regions, total - 1, most).is_err());
                let divided = divide(&target, &regions, total, most).unwrap();
                let mut found = vec![];
                for part in &divided {
                    prop_assert!(part.local_bytes(target.stripes, entry) <= most);
                    prop_assert_eq!(part.total_bytes(), part.local_bytes(target.stripes, entry));
                    found.extend(bytes(part, &target));
                }
                prop_assert_eq!(found, bytes(&regions, &target));
            }
        }
    }
}
