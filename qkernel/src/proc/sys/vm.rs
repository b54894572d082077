//! The part of `/proc/sys/vm` that says how much memory the reader's container may be promised.

use core::marker::PhantomData;

use crate::pseudo::{Entry, Out};
use crate::task::container;
use machine::errno::{Errno, Result};
use machine::mm::commit;
use machine::owner::Owner;

/// The settings, for whatever the entries around them are about.
pub(super) struct Settings<C>(PhantomData<C>);

impl<C: 'static> Settings<C> {
    pub(super) const MEMORY: Entry<C> = Entry::setting(
        "overcommit_memory",
        |_, out| show(out, commit::mode(owner()) as u64),
        |_, bytes| {
            let mode = commit::Mode::of(number(bytes)?).ok_or(Errno::EINVAL)?;
            commit::set_mode(owner(), mode);
            Ok(())
        },
    );
    pub(super) const RATIO: Entry<C> = Entry::setting(
        "overcommit_ratio",
        |_, out| show(out, u64::from(commit::ratio(owner()))),
        |_, bytes| {
            let ratio = i32::try_from(number(bytes)?).map_err(|_| Errno::EINVAL)?;
            commit::set_ratio(owner(), ratio.unsigned_abs());
            Ok(())
        },
    );
    pub(super) const KBYTES: Entry<C> = Entry::setting(
        "overcommit_kbytes",
        |_, out| show(out, commit::kbytes(owner())),
        |_, bytes| {
            commit::set_kbytes(owner(), number(bytes)?);
            Ok(())
        },
    );
}

/// Whose settings are meant.
fn owner() -> Owner {
    container::current().memory().owner()
}

fn show(out: &mut Out, value: u64) -> Result<()> {
    writeln!(out, "{value}");
    Ok(())
}

/// A number with white space around it; `EINVAL`.
fn number(bytes: &[u8]) -> Result<u64> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let text = core::str::from_utf8(&bytes[..end]).map_err(|_| Errno::EINVAL)?;
    text.trim().parse().map_err(|_| Errno::EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_may_have_space_around_them() {
        assert_eq!(number(b" 2\n"), Ok(2));
        assert_eq!(number(b"1\0junk"), Ok(1));
        for bad in [&b""[..], b"-1", b"1 2", b"x", b"99999999999999999999"] {
            assert_eq!(number(bad), Err(Errno::EINVAL));
        }
    }
}
