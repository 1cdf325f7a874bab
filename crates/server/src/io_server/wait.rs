//! Things that tasks wait for: a value, a permit, the end of other tasks.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use outcore_core::{Error, Result};

/// A value that one task provides and another waits for.
pub(super) struct Slot<T>(Rc<RefCell<(Option<T>, Option<Waker>)>>);

impl<T> Slot<T> {
    pub fn new() -> Self {
        Self(Rc::new(RefCell::new((None, None))))
    }

    pub fn give(&self, value: T) {
        let waker = {
            let mut state = self.0.borrow_mut();
            state.0 = Some(value);
            state.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Clone for Slot<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Future for Slot<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut state = self.0.borrow_mut();
        match state.0.take() {
            Some(value) => Poll::Ready(value),
            None => {
                state.1 = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

#[derive(Default)]
struct Queue {
    free: usize,
    waiting: VecDeque<Slot<()>>,
}

/// A number of permits, granted in the order of the requests.
#[derive(Clone)]
pub(super) struct Permits(Rc<RefCell<Queue>>);

/// A permit, which returns when dropped.
pub(super) struct Permit(Rc<RefCell<Queue>>);

impl Permits {
    pub fn new(free: usize) -> Self {
        Self(Rc::new(RefCell::new(Queue { free, waiting: VecDeque::new() })))
    }

    pub async fn take(&self) -> Permit {
        let turn = {
            let mut queue = self.0.borrow_mut();
            if queue.free > 0 {
                queue.free -= 1;
                None
            } else {
                let slot = Slot::new();
                queue.waiting.push_back(slot.clone());
                Some(slot)
            }
        };
        if let Some(turn) = turn {
            turn.await;
        }
        Permit(self.0.clone())
    }

    /// Number of tasks that wait.
    pub fn waiting(&self) -> usize {
        self.0.borrow().waiting.len()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let next = {
            let mut queue = self.0.borrow_mut();
            let next = queue.waiting.pop_front();
            queue.free += usize::from(next.is_none());
            next
        };
        if let Some(next) = next {
            next.give(());
        }
    }
}

/// A gate that opens once, with a result that all current and later waiters receive.
#[derive(Clone, Default)]
pub(super) struct Gate(Rc<RefCell<Opening>>);

#[derive(Default)]
struct Opening {
    result: Option<Result<()>>,
    waiting: Vec<Slot<()>>,
}

impl Gate {
    /// Opens the gate. Only the first result counts.
    pub fn open(&self, result: Result<()>) {
        let waiting = {
            let mut state = self.0.borrow_mut();
            state.result.get_or_insert(result);
            std::mem::take(&mut state.waiting)
        };
        for slot in waiting {
            slot.give(());
        }
    }

    pub async fn wait(&self) -> Result<()> {
        loop {
            let slot = Slot::new();
            {
                let mut state = self.0.borrow_mut();
                if let Some(result) = &state.result {
                    return result.clone();
                }
                state.waiting.push(slot.clone());
            }
            slot.await;
        }
    }
}

struct Running {
    count: usize,
    result: Result<()>,
    waiting: Option<(usize, Slot<()>)>,
}

/// A group of tasks that another task waits for, and their first error.
#[derive(Clone)]
pub(super) struct Group(Rc<RefCell<Running>>);

impl Group {
    pub fn new() -> Self {
        Self(Rc::new(RefCell::new(Running { count: 0, result: Ok(()), waiting: None })))
    }

    pub fn begin(&self) {
        self.0.borrow_mut().count += 1;
    }

    pub fn end(&self, result: Result<()>) {
        let waiting = {
            let mut state = self.0.borrow_mut();
            state.count -= 1;
            if state.result.is_ok() {
                state.result = result;
            }
            let count = state.count;
            state.waiting.take_if(|(most, _)| count <= *most)
        };
        if let Some((_, slot)) = waiting {
            slot.give(());
        }
    }

    pub fn fail(&self, error: Error) {
        self.begin();
        self.end(Err(error));
    }

    pub fn result(&self) -> Result<()> {
        self.0.borrow().result.clone()
    }

    /// Waits until at most `most` of the tasks are running.
    pub async fn at_most(&self, most: usize) {
        let slot = {
            let mut state = self.0.borrow_mut();
            if state.count <= most {
                return;
            }
            let slot = Slot::new();
            state.waiting = Some((most, slot.clone()));
            slot
        };
        slot.await;
    }
}
