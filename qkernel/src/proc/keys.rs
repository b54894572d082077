//! `/proc/keys` and `/proc/key-users`: the keys of the reader's container (`keyrings(7)`).

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;

use crate::keys::{Key, Kind, Need, now};
use crate::pseudo::Out;
use crate::task;
use crate::task::container;
use crate::task::keyrings::{How, Seeker};
use machine::errno::Result;

/// The keys that the reader may see.
pub fn keys(out: &mut Out) -> Result<()> {
    let task = task::current();
    let seeker = Seeker::new(&task);
    let turn = seeker.space.turn();
    let how = How { creates: false, ended_too: true };
    seeker.space.for_each(|key| {
        if seeker.find(&turn, key.serial, how, Some(Need::View)).is_ok() {
            line(key, out);
        }
        Ok(())
    })
}

fn line(key: &Arc<Key>, out: &mut Out) {
    let facts = key.facts();
    let flag = |set: bool, letter: char| if set { letter } else { '-' };
    write!(
        out,
        "{:08x} I{}-{}--{} {:5} {:>4} {:08x} {:5} {:5} {:<9} ",
        key.serial,
        flag(facts.is_revoked, 'R'),
        flag(facts.is_counted, 'Q'),
        flag(facts.is_invalidated, 'i'),
        // The reader has one of them.
        Arc::strong_count(key).saturating_sub(1),
        time_left(facts.expires, now()),
        facts.perm,
        facts.owner.uid,
        facts.owner.shown_gid(),
        key.kind.name(),
    );
    out.push(&key.description);
    match (key.kind, facts.holds) {
        (Kind::Logon, _) => {}
        (Kind::Keyring, 0) => out.push(b": empty"),
        (_, holds) => write!(out, ": {holds}"),
    }
    out.push(b"\n");
}

/// How long a key has left, in the largest unit that fits.
fn time_left(expires: Option<u64>, now: u64) -> String {
    const UNITS: [(u64, char); 5] = [(604_800, 'w'), (86_400, 'd'), (3600, 'h'), (60, 'm'), (1, 's')];
    let Some(expires) = expires else { return "perm".into() };
    let left = expires.saturating_sub(now);
    let largest = UNITS.into_iter().find(|(seconds, _)| left >= *seconds);
    largest.map_or_else(|| "expd".into(), |(seconds, unit)| format!("{}{unit}", left / seconds))
}

/// Lists how many keys, and bytes of them, each user has, and may have (`/proc/key-users`).
pub fn key_users(out: &mut Out) -> Result<()> {
    let space = container::current().keys.clone();
    let mut from = 0;
    loop {
        let some = space.quotas.some_from(from);
        let Some((last, _)) = some.last().copied() else { return Ok(()) };
        for (uid, used) in some {
            out.entry()?;
            let most = space.quotas.most(uid);
            let (keys, bytes) = (used.keys, used.bytes);
            writeln!(
                out,
                "{uid:5}: {:5} {keys}/{keys} {keys}/{} {bytes}/{}",
                keys + 1,
                most.keys,
                most.bytes
            );
        }
        let Some(next) = last.checked_add(1) else { return Ok(()) };
        from = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_told_in_the_largest_unit() {
        let left = |expires| time_left(Some(expires), 1000);
        assert_eq!(time_left(None, 1000), "perm");
        assert_eq!([left(1), left(1000), left(1001)], ["expd", "expd", "1s"]);
        assert_eq!([left(1000 + 7 * 3600), left(1000 + 3 * 86_400 + 100)], ["7h", "3d"]);
    }
}
