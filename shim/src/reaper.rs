//! The ends of the shim's children: programs that it started, and leashes, which become its children when their VMM
//! or command ends.
//!
//! One thread reaps them. So nobody waits for a child by itself: whoever started one waits for word of it here. While a leash is
//! to become known, children that nobody knows stay unreaped, since a pid that was reaped may be given to another process
//! before its owner names it.

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
    /// So many leashes are about to become known.
    expected: usize,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Reaper(Mutex<Known>);

impl Known {
    /// A child was reaped; result: whose leash it was.
    fn ended(&mut self, pid: i32, status: i32) -> Option<(Owner, i32)> {
        if let Some(program) = self.programs.remove(&pid) {
            // Nobody may want to know.
            let _ = program.send(status);
        }
        self.leashes.remove(&pid).map(|owner| (owner, status))
    }

    fn has(&self, pid: i32) -> bool {
        self.programs.contains_key(&pid) || self.leashes.contains_key(&pid)
    }
}

/// A program that was started.
#[derive(Debug)]
pub struct Program(Receiver<i32>);

impl Program {
    /// Waits for its end; result: its wait status.
    pub fn wait(self) -> Option<i32> {
        self.0.recv().ok()
    }
}

/// The expectation that a leash becomes known. While it lives, no end of a leash is overlooked.
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
        if known.expected == 0 {
            process::reap_ended(|pid, status| ended.extend(known.ended(pid, status)));
            return ended;
        }
        let pids: Vec<i32> = known.programs.keys().chain(known.leashes.keys()).copied().collect();
        for pid in pids {
            if let Some(status) = process::reap_now(pid) {
                ended.extend(known.ended(pid, status));
            }
        }
        ended
    }
}

impl Expectation<'_> {
    /// Says whose leash it is; `Some`: it has ended already, with this wait status.
    #[must_use]
    pub fn claim(&self, pid: i32, owner: Owner) -> Option<i32> {
        let mut known = self.0.known();
        let early = process::reap_now(pid);
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
        // What nobody has claimed by now is nobody's. The end of one that is known is announced by a signal of its own.
        while known.expected == 0
            && let Some(pid) = process::ended_child()
            && !known.has(pid)
        {
            process::reap(pid);
        }
    }
}

#[cfg(test)]
#[expect(clippy::zombie_processes, reason = "the reaper is the one that waits")]
mod tests {
    use super::*;

    /// A child that has ended and that nobody has waited for; result: its pid.
    fn dead(code: &str) -> i32 {
        let child = Command::new("sh").args(["-c", code]).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        assert_eq!(process::wait_child(pid), Some(process::ChildEvent::Ended));
        pid
    }

    fn is_there(pid: i32) -> bool {
        std::path::Path::new(&format!("/proc/{pid}")).exists()
    }

    fn owner() -> Owner {
        Owner { container: "c".into(), exec: String::new() }
    }

    // One test: it reaps all children of the process.
    #[test]
    fn a_child_that_nobody_knows_keeps_its_pid_until_it_is_claimed() {
        let reaper = Reaper::default();
        let (one, other) = (reaper.expect(), reaper.expect());
        let (early, stranger, later) = (dead("exit 3"), dead("exit 4"), dead("exit 5"));
        let program = reaper.spawn(Command::new("sh").args(["-c", "exit 6"])).unwrap();
        let mut ended = Vec::new();
        // A program that was started here is reaped beside those that wait.
        while reaper.known().programs.values().next().is_some() {
            ended.extend(reaper.reap());
        }
        assert_eq!((program.wait(), ended.len()), (Some(6 << 8), 0));
        assert!(is_there(early) && is_there(stranger) && is_there(later), "their pids are not free");
        assert_eq!(one.claim(early, owner()), Some(3 << 8));
        assert!(!is_there(early));
        drop(one);
        assert!(is_there(stranger), "somebody else may name it yet");
        assert_eq!(other.claim(later, owner()), Some(5 << 8));
        drop(other);
        assert!(!is_there(stranger), "nobody is left who could");

        let mut leash = Command::new("sh");
        let mut leash =
            leash.args(["-c", "read a; exit 7"]).stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pid = i32::try_from(leash.id()).unwrap();
        let expectation = reaper.expect();
        assert_eq!(expectation.claim(pid, owner()), None, "it lives");
        drop(leash.stdin.take());
        assert_eq!(process::wait_child(pid), Some(process::ChildEvent::Ended));
        let orphan = dead("exit 8");
        drop(expectation);
        assert_eq!(reaper.reap(), [(owner(), 7 << 8)]);
        assert!(!is_there(pid) && !is_there(orphan));
    }
}
