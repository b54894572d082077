//! How files are open: who writes to one, and whether a program runs that is in it.

use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use machine::errno::{Errno, Result};

/// How often a file is open, in all views of it.
#[derive(Default)]
pub struct Opens {
    all: AtomicU32,
    /// How often for writing; or, negative, how many programs run that are in it and are not to change.
    writers: AtomicI32,
}

impl Opens {
    /// It was opened. `ETXTBSY`: for writing, while it is a program that runs.
    pub fn add(&self, writes: bool) -> Result<()> {
        if writes {
            self.begin_write()?;
        }
        self.all.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// Counts the end of an opening that [`Self::add`] counted.
    pub fn remove(&self, writes: bool) {
        self.all.fetch_sub(1, Ordering::SeqCst);
        if writes {
            self.writers.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn begin_write(&self) -> Result<()> {
        self.step(|writers| writers.checked_add(1).filter(|more| *more > 0))
    }

    /// Does what changes the content, as long as it is no program that runs: `ETXTBSY`.
    pub fn while_writing<R>(&self, change: impl FnOnce() -> Result<R>) -> Result<R> {
        self.begin_write()?;
        let result = change();
        self.writers.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// A program is begun from it, and nobody opens it for writing until [`Self::allow_writes`] is called. `ETXTBSY`: it is open.
    pub fn deny_writes(&self) -> Result<()> {
        self.step(|writers| writers.checked_sub(1).filter(|fewer| *fewer < 0))
    }

    /// See [`Self::deny_writes`].
    pub fn allow_writes(&self) {
        self.writers.fetch_add(1, Ordering::SeqCst);
    }

    fn step(&self, change: impl FnMut(i32) -> Option<i32>) -> Result<()> {
        let done = self.writers.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change);
        done.map(drop).map_err(|_| Errno::ETXTBSY)
    }

    /// Whether someone has it open.
    pub fn is_open(&self) -> bool {
        self.all.load(Ordering::SeqCst) != 0
    }

    /// Whether someone has it open for writing.
    pub fn is_written(&self) -> bool {
        self.writers.load(Ordering::SeqCst) > 0
    }

    /// Whether it is open in ways that a new lease forbids, besides the description that gets the lease.
    pub fn forbid(&self, exclusive: bool) -> bool {
        if exclusive { self.all.load(Ordering::SeqCst) != 1 } else { self.is_written() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openings_forbid_leases() {
        let opens = Opens::default();
        opens.add(false).unwrap();
        assert!(!opens.forbid(false) && !opens.forbid(true));
        opens.add(true).unwrap();
        assert!(opens.forbid(false) && opens.forbid(true) && opens.is_written());
        opens.remove(true);
        opens.add(false).unwrap();
        assert!(!opens.forbid(false) && opens.forbid(true));
    }

    #[test]
    fn programs_that_run_are_not_written() {
        let opens = Opens::default();
        opens.add(true).unwrap();
        assert_eq!(opens.deny_writes(), Err(Errno::ETXTBSY));
        opens.remove(true);
        opens.deny_writes().unwrap();
        opens.deny_writes().unwrap();
        assert_eq!(opens.add(true), Err(Errno::ETXTBSY));
        assert_eq!(opens.while_writing(|| Ok(())), Err(Errno::ETXTBSY));
        opens.add(false).unwrap();
        opens.allow_writes();
        assert!(!opens.is_written() && opens.add(true).is_err());
        opens.allow_writes();
        assert_eq!(opens.while_writing(|| Ok(opens.is_written() && opens.deny_writes().is_err())), Ok(true));
        opens.add(true).unwrap();
    }
}
