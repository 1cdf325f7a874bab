//! Tasks: the steps of a call as `async` functions, polled without a runtime. The compiler generates the state
//! machines. There is no thread and no clock; a task resumes when the event that it waits for arrives.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};

/// Steps without a result.
pub(super) type Task = Pin<Box<dyn Future<Output = ()>>>;

type Ready = Arc<Mutex<VecDeque<u64>>>;

struct Alarm {
    task: u64,
    ready: Ready,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner).push_back(self.task);
    }
}

/// The running tasks.
#[derive(Default)]
pub(super) struct Tasks {
    running: HashMap<u64, (Task, Waker)>,
    ready: Ready,
    next: u64,
}

impl Tasks {
    /// Number of running tasks.
    pub fn count(&self) -> usize {
        self.running.len()
    }

    /// Polls every ready task, in the order in which they became ready, including tasks that these start.
    pub fn run(&mut self, begun: &RefCell<Vec<Task>>) {
        loop {
            for task in begun.take() {
                let number = self.next;
                self.next += 1;
                let waker = Waker::from(Arc::new(Alarm { task: number, ready: self.ready.clone() }));
                waker.wake_by_ref();
                self.running.insert(number, (task, waker));
            }
            let next = self.ready.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(number) = next else { return };
            let Some((task, waker)) = self.running.get_mut(&number) else { continue };
            if task.as_mut().poll(&mut Context::from_waker(waker)).is_ready() {
                self.running.remove(&number);
            }
        }
    }
}
