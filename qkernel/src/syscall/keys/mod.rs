//! `add_key(2)`, `request_key(2)` and `keyctl(2)`.

mod attributes;
mod rings;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use crate::keys::ring::{LINK_BYTES, Name};
use crate::keys::space::{Count, Turn};
use crate::keys::{BIG_MAX, Key, Kind, Need};
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use crate::task::keyrings::{CREATE, Found, How, PLAIN, Seeker};
use machine::errno::{Errno, Result};
use machine::mm::{UserAddr, account};

/// Longest name of a type, and longest description, with the NUL.
const TYPE_MAX: usize = 32;
const DESCRIPTION_MAX: usize = 4096;
/// Most bytes of capabilities that are told.
const UNKNOWN_BYTES: usize = 4096;
/// Most bytes that `KEYCTL_UPDATE` takes.
const UPDATE_MAX: u64 = 4096;

/// The answer of `KEYCTL_CAPABILITIES`: what `keyctl(2)` can do here, in bits of two bytes: itself, keyrings that outlive
/// their user, large keys, invalidation, closed keyrings, moving; names of keyrings of a container's own, and
/// keys of its own.
const CAPABILITIES: [u8; 2] = [0x01 | 0x02 | 0x10 | 0x20 | 0x40 | 0x80, 0x01 | 0x02];

/// The number of a key as a result.
fn number(key: &Key) -> SyscallResult {
    Ok(u64::from(key.serial.cast_unsigned()))
}

/// Reads the name of a type. `EINVAL`: it is too long, or empty. `EPERM`: it is one of the kernel's own.
fn read_kind(cx: &Ctx<'_>, addr: UserAddr) -> Result<Vec<u8>> {
    let name = cx.user().read_cstr(addr, TYPE_MAX, Errno::EINVAL)?;
    match name.first() {
        None => Err(Errno::EINVAL),
        Some(b'.') => Err(Errno::EPERM),
        Some(_) => Ok(name),
    }
}

fn read_description(cx: &Ctx<'_>, addr: UserAddr) -> Result<Vec<u8>> {
    cx.user().read_cstr(addr, DESCRIPTION_MAX, Errno::EINVAL)
}

fn read_payload(cx: &Ctx<'_>, addr: UserAddr, len: u64) -> Result<Box<[u8]>> {
    let len = usize::try_from(len).map_err(|_| Errno::EINVAL)?;
    account::check(len)?;
    let mut payload = vec![0; len];
    if len > 0 {
        cx.user().read_bytes(addr, &mut payload)?;
    }
    Ok(payload.into())
}

/// `add_key(2)`: a new key in a keyring, or a new content of the one that is there; its number.
pub(super) fn add_key(
    cx: &Ctx<'_>,
    kind: UserAddr,
    description: UserAddr,
    payload: UserAddr,
    len: u64,
    ring: i32,
) -> SyscallResult {
    if len > BIG_MAX as u64 {
        return Err(Errno::EINVAL);
    }
    let kind = read_kind(cx, kind)?;
    let description = if description.is_null() { Vec::new() } else { read_description(cx, description)? };
    if description.starts_with(b".") && kind.starts_with(b"keyring") {
        return Err(Errno::EPERM);
    }
    let payload = read_payload(cx, payload, len)?;
    let seeker = Seeker::new(cx.task);
    let turn = seeker.space.turn();
    let ring = seeker.find(&turn, ring, CREATE, Some(Need::Write))?;
    let kind = Kind::of(&kind)?;
    if ring.key.kind != Kind::Keyring {
        return Err(Errno::ENOTDIR);
    }
    kind.check(&description, &payload)?;
    if description.is_empty() {
        return Err(Errno::EINVAL);
    }
    number(&*put(&seeker, &turn, &ring, (kind, description.into()), payload)?)
}

/// Puts a key into a keyring.
fn put(seeker: &Seeker<'_>, turn: &Turn, ring: &Found, name: Name, payload: Box<[u8]>) -> Result<Arc<Key>> {
    let (kind, description) = name;
    if ring.key.facts().is_restricted {
        return Err(Errno::EPERM);
    }
    let known = ring.key.link_of(kind, &description).filter(|_| kind.is_updatable());
    if let Some(key) =
        known.filter(|key| !matches!(key.check_alive(), Err(Errno::ENOKEY | Errno::EKEYREVOKED)))
    {
        seeker.check(&Found { key: key.clone(), is_possessed: ring.is_possessed }, Need::Write)?;
        key.update(payload)?;
        return Ok(key);
    }
    let bytes = kind.quota_bytes(&description, payload.len()) + LINK_BYTES;
    if !seeker.space.quotas.has_room(seeker.creds.fsuid, 1, bytes) {
        // What has ended counts as long as it is held.
        seeker.space.collect(turn)?;
    }
    let name = (kind, &*description);
    let key = seeker.space.create(name, seeker.owner(), kind.first_perm(), payload, Count::Within)?;
    ring.key.link(turn, &key)?;
    Ok(key)
}

/// `request_key(2)`: the key of a type and description that the caller has, which is linked to a keyring as well. Nobody is asked to make
/// one.
pub(super) fn request_key(
    cx: &Ctx<'_>,
    kind: UserAddr,
    description: UserAddr,
    callout: UserAddr,
    ring: i32,
) -> SyscallResult {
    let kind = read_kind(cx, kind)?;
    let description = read_description(cx, description)?;
    if !callout.is_null() {
        cx.user().read_cstr(callout, DESCRIPTION_MAX, Errno::EINVAL)?;
    }
    let seeker = Seeker::new(cx.task);
    let turn = seeker.space.turn();
    let ring = match ring {
        0 => None,
        ring => Some(seeker.find(&turn, ring, CREATE, Some(Need::Write))?),
    };
    let kind = Kind::of(&kind).map_err(|_| Errno::ENOKEY)?;
    let found = seeker.search_all(&turn, kind, &description).map_err(not_found)?;
    if let Some(ring) = ring {
        seeker.check(&found, Need::Link)?;
        ring.key.link(&turn, &found.key)?;
    }
    number(&found.key)
}

/// Returns the error of a call whose search for a key has failed: `ENOKEY` if it has found nothing.
fn not_found(error: Errno) -> Errno {
    if error == Errno::EAGAIN { Errno::ENOKEY } else { error }
}

/// An argument that is an `int`.
fn int(arg: u64) -> i32 {
    abi::word::low32(arg).cast_signed()
}

/// `keyctl(2)`.
pub(super) fn keyctl(cx: &Ctx<'_>, operation: u32, a: u64, b: u64, c: u64, d: u64) -> SyscallResult {
    let at = UserAddr::new;
    match operation {
        0 => get_keyring_id(cx, int(a), int(b) != 0),
        1 => rings::join_session(cx, at(a)),
        2 => update(cx, int(a), at(b), c),
        3 => attributes::revoke(cx, int(a)),
        4 => attributes::chown(cx, int(a), abi::word::low32(b), abi::word::low32(c)),
        5 => attributes::set_perm(cx, int(a), abi::word::low32(b)),
        6 => attributes::describe(cx, int(a), at(b), c),
        7 => rings::clear(cx, int(a)),
        8 => rings::link(cx, int(a), int(b)),
        9 => rings::unlink(cx, int(a), int(b)),
        10 => rings::search(cx, int(a), at(b), at(c), int(d)),
        11 => read(cx, int(a), at(b), c),
        // Nobody is asked to make keys, so nobody may.
        12 | 13 | 19 | 20 => Err(Errno::EPERM),
        14 => rings::set_destination(cx, int(a)),
        15 => attributes::set_timeout(cx, int(a), abi::word::low32(b)),
        16 => match int(a) {
            ..0 => Err(Errno::EINVAL),
            0 => Ok(0),
            1.. => Err(Errno::ENOKEY),
        },
        17 => attributes::get_security(cx, int(a), at(b), c),
        18 => rings::session_to_parent(cx),
        21 => attributes::invalidate(cx, int(a)),
        22 => rings::get_persistent(cx, abi::word::low32(a), int(b)),
        29 => rings::restrict(cx, int(a), at(b), at(c)),
        30 => rings::move_key(cx, int(a), int(b), int(c), abi::word::low32(d)),
        31 => capabilities(cx, at(a), b),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

fn get_keyring_id(cx: &Ctx<'_>, id: i32, creates: bool) -> SyscallResult {
    let seeker = Seeker::new(cx.task);
    let turn = seeker.space.turn();
    let found = seeker.find(&turn, id, How { creates, ended_too: false }, Some(Need::Search))?;
    number(&found.key)
}

fn update(cx: &Ctx<'_>, id: i32, payload: UserAddr, len: u64) -> SyscallResult {
    if len > UPDATE_MAX {
        return Err(Errno::EINVAL);
    }
    let payload = read_payload(cx, payload, len)?;
    let seeker = Seeker::new(cx.task);
    let turn = seeker.space.turn();
    let key = seeker.find(&turn, id, PLAIN, Some(Need::Write))?.key;
    if !key.kind.is_updatable() {
        return Err(Errno::EOPNOTSUPP);
    }
    key.kind.check(&key.description, &payload)?;
    key.update(payload).map(|()| 0)
}

/// `KEYCTL_READ`: how many bytes the key holds; they are copied if there is room for all. Who holds a key that can be searched for may
/// read it as well.
fn read(cx: &Ctx<'_>, id: i32, buffer: UserAddr, room: u64) -> SyscallResult {
    let content = {
        let seeker = Seeker::new(cx.task);
        let turn = seeker.space.turn();
        let found = seeker
            .find(&turn, id, How { creates: false, ended_too: true }, None)
            .map_err(|_| Errno::ENOKEY)?;
        // What is held can be searched for.
        if !found.is_possessed {
            seeker.check(&found, Need::Read)?;
        }
        let key = found.key;
        if !key.kind.is_readable() {
            return Err(Errno::EOPNOTSUPP);
        }
        key.check_alive()?;
        let unit = if key.kind == Kind::Keyring { size_of::<i32>() } else { 1 };
        if !room.is_multiple_of(unit as u64) && !buffer.is_null() {
            return Err(Errno::EINVAL);
        }
        let len = key.facts().holds * unit;
        if buffer.is_null() || len as u64 > room {
            return Ok(len as u64);
        }
        match key.kind {
            Kind::Keyring => key.serials()?.into_iter().flat_map(i32::to_ne_bytes).collect(),
            _ => key.bytes()?,
        }
    };
    cx.user().write_bytes(buffer, &content)?;
    Ok(content.len() as u64)
}

fn capabilities(cx: &Ctx<'_>, buffer: UserAddr, room: u64) -> SyscallResult {
    let mut told = CAPABILITIES.to_vec();
    let room = usize::try_from(room).unwrap_or(usize::MAX);
    told.truncate(room);
    cx.user().write_bytes(buffer, &told)?;
    // What is unknown to this kernel it cannot do. Nobody knows of more than a page of them.
    let unknown = room.min(UNKNOWN_BYTES) - told.len();
    if unknown > 0 {
        cx.user().aspace().zero_out(buffer.offset(told.len() as u64), unknown)?;
    }
    Ok(CAPABILITIES.len() as u64)
}
