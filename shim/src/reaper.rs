//! The ends of the shim's children: programs that it started, and leashes, which become its children when their VMM
//! or command ends.
//!
//! One thread reaps them all. So nobody waits for a child by itself: whoever started one waits for word of it here.

use std::collections::HashMap;
use std::io;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};

use vmm::process;

/// Whose leash it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub container: String,
    /// Empty: the first process.
    pub exec: String,
}

#[derive(Debug, Default)]
struct Known {
    /// Programs that were started here.
    programs: HashMap<i32, Sender<i32>>,
    leashes: HashMap<i32, Owner>,
    /// Children that ended before anybody said whose they are. Kept while one is to become known.
    early: HashMap<i32, i32>,
    /// So many leashes are about to become known.
    expected: usize,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Reaper(Mutex<Known>);

/// A program that was started.
#[derive(Debug)]
pub struct Program(Receiver<i32>);

impl Program {
    /// Waits for its end; result: its wait status.
    pub fn wait(self) -> Option<i32> {
        self.0.recv().ok()
    }
}

/// As long as it lives no end of a leash is overlooked.
#[derive(Debug)]
pub struct Expectation<'a>(&'a Reaper);

impl Reaper {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a program. Nothing is reaped meanwhile, so that a failure to execute it is told to whom it concerns.
    pub fn spawn(&self, command: &mut Command) -> io::Result<Program> {
        let mut known = self.known();
        let pid = i32::try_from(command.spawn()?.id()).unwrap_or(-1);
        let (sender, end) = channel();
        known.programs.insert(pid, sender);
        Ok(Program(end))
    }

    /// Announces that a leash is about to become known.
    pub fn expect(&self) -> Expectation<'_> {
        self.known().expected += 1;
        Expectation(self)
    }

    /// Reaps children that have ended; result: whose leashes they are, with their wait statuses.
    pub fn reap(&self) -> Vec<(Owner, i32)> {
        let mut known = self.known();
        let mut ended = Vec::new();
        process::reap_ended(|pid, status| {
            if let Some(program) = known.programs.remove(&pid) {
                // Nobody may want to know.
                let _ = program.send(status);
            } else if let Some(owner) = known.leashes.remove(&pid) {
                ended.push((owner, status));
            } else if known.expected > 0 {
                known.early.insert(pid, status);
            }
        });
        ended
    }
}

impl Expectation<'_> {
    /// Says whose leash it is; `Some`: it has ended already, with this wait status.
    #[must_use]
    pub fn claim(&self, pid: i32, owner: Owner) -> Option<i32> {
        let mut known = self.0.known();
        let early = known.early.remove(&pid);
        if early.is_none() {
            known.leashes.insert(pid, owner);
        }
        early
    }
}

impl Drop for Expectation<'_> {
    fn drop(&mut self) {
        let mut known = self.0.known();
        known.expected -= 1;
        if known.expected == 0 {
            known.early.clear();
        }
    }
}
