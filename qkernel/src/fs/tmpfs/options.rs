//! Options of a tmpfs (`tmpfs(5)`).

use alloc::format;
use alloc::vec::Vec;

use machine::errno::{Errno, Result};
use machine::mm::PAGE;

/// Bytes that a node counts for, of those that `nr_inodes` allows.
pub const NODE_SPACE: u64 = 1024;
/// Stands for any number of blocks or nodes.
pub const UNLIMITED: u64 = u64::MAX;
const PERMISSIONS: u32 = 0o7777;

/// The options of one call of `mount(2)`; `None`: not said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    pub pages: Option<u64>,
    pub nodes: Option<u64>,
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// How it is written in the tables of mounts. Empty: as if it were not said.
    pub huge: Option<Vec<u8>>,
    pub policy: Option<Vec<u8>>,
    pub wide_numbers: Option<bool>,
    pub no_swap: bool,
}

impl Options {
    /// Reads the text that `mount(2)` was given; `memory_pages` are all there are. `EINVAL`: an option is not known, or its
    /// value makes no sense.
    pub fn parse(text: &[u8], memory_pages: u64) -> Result<Self> {
        let mut options = Self::default();
        for option in split(text) {
            let (name, value) = match option.iter().position(|byte| *byte == b'=') {
                Some(at) => (&option[..at], Some(&option[at + 1..])),
                None => (option, None),
            };
            if !name.is_empty() {
                options.take(name, value, memory_pages)?;
            }
        }
        Ok(options)
    }

    fn take(&mut self, name: &[u8], value: Option<&[u8]>, memory_pages: u64) -> Result<()> {
        let said = || value.filter(|value| !value.is_empty()).ok_or(Errno::EINVAL);
        let flag = || if value.is_none() { Ok(true) } else { Err(Errno::EINVAL) };
        match name {
            b"size" => self.pages = Some(size_pages(said()?, memory_pages)?),
            b"nr_blocks" => self.pages = Some(count(said()?, i64::MAX as u64)?),
            b"nr_inodes" => self.nodes = Some(count(said()?, u64::MAX / NODE_SPACE)?),
            b"mode" => self.mode = Some(number(said()?, 8)? & PERMISSIONS),
            b"uid" => self.uid = Some(id(said()?)?),
            b"gid" => self.gid = Some(id(said()?)?),
            b"huge" => self.huge = Some(huge(said()?)?),
            b"mpol" => self.policy = Some(policy(said()?)?),
            b"noswap" => self.no_swap = flag()?,
            b"inode32" => self.wide_numbers = Some(!flag()?),
            b"inode64" => self.wide_numbers = Some(flag()?),
            // The mount sees to the first two; the others say when a disk is written to.
            b"ro" | b"rw" | b"sync" | b"async" | b"dirsync" | b"lazytime" | b"nolazytime" | b"mand"
            | b"nomand" => {}
            _ => return Err(Errno::EINVAL),
        }
        Ok(())
    }

    /// Returns the options after a remount with `change`. `EINVAL`: it would limit what was unlimited, or change
    /// whether pages may be swapped.
    pub fn changed_by(&self, change: &Self) -> Result<Self> {
        let limits_later = |before: Option<u64>, now: Option<u64>| {
            before == Some(UNLIMITED) && now.is_some_and(|now| now != UNLIMITED)
        };
        let bounded = limits_later(self.pages, change.pages) || limits_later(self.nodes, change.nodes);
        if bounded || self.no_swap != change.no_swap {
            return Err(Errno::EINVAL);
        }
        Ok(Self {
            pages: change.pages.or(self.pages),
            nodes: change.nodes.or(self.nodes),
            huge: change.huge.clone().or_else(|| self.huge.clone()),
            policy: change.policy.clone().or_else(|| self.policy.clone()),
            wide_numbers: change.wide_numbers.or(self.wide_numbers),
            ..self.clone()
        })
    }

    /// Returns the options as tables of mounts show them, each behind a comma. `default`: the blocks, and the nodes,
    /// where nothing is said.
    pub fn shown(&self, default: u64) -> Vec<u8> {
        let mut text = Vec::new();
        let mut push = |name: &str, value: &[u8]| {
            text.extend_from_slice(name.as_bytes());
            text.extend_from_slice(value);
        };
        let bounded = |most: Option<u64>| most.filter(|most| *most != default);
        let or_zero = |most: u64| if most == UNLIMITED { 0 } else { most };
        if let Some(pages) = bounded(self.pages) {
            push(",size=", format!("{}k", or_zero(pages).saturating_mul(PAGE / 1024)).as_bytes());
        }
        if let Some(nodes) = bounded(self.nodes) {
            push(",nr_inodes=", format!("{}", or_zero(nodes)).as_bytes());
        }
        if let Some(mode) = self.mode.filter(|mode| *mode != 0o1777) {
            push(",mode=", format!("{mode:03o}").as_bytes());
        }
        for (name, id) in [(",uid=", self.uid), (",gid=", self.gid)] {
            if let Some(id) = id.filter(|id| *id != 0) {
                push(name, format!("{id}").as_bytes());
            }
        }
        if self.wide_numbers == Some(true) {
            push(",inode64", b"");
        }
        for (name, word) in [(",huge=", &self.huge), (",mpol=", &self.policy)] {
            if let Some(word) = word.as_ref().filter(|word| !word.is_empty()) {
                push(name, word);
            }
        }
        if self.no_swap {
            push(",noswap", b"");
        }
        text
    }
}

/// The single options. A comma with a digit behind it is part of a list of nodes.
fn split(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = text;
    core::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let ends = |at: &usize| rest[*at] == b',' && !rest.get(at + 1).is_some_and(u8::is_ascii_digit);
        let end = (0..rest.len()).find(ends).unwrap_or(rest.len());
        let option = &rest[..end];
        rest = rest.get(end + 1..).unwrap_or_default();
        Some(option)
    })
}

/// A number as in C, and what follows. More than fits wraps around, as in the kernel that programs know.
fn digits(text: &[u8], radix: Option<u32>) -> (u64, &[u8]) {
    let (radix, digits) = match (radix, text) {
        (Some(radix), _) => (radix, text),
        (None, [b'0', b'x' | b'X', digit, ..]) if digit.is_ascii_hexdigit() => (16, &text[2..]),
        (None, [b'0', ..]) => (8, text),
        (None, _) => (10, text),
    };
    let mut value = 0u64;
    let mut rest = digits;
    while let [byte, after @ ..] = rest
        && let Some(digit) = char::from(*byte).to_digit(radix)
    {
        value = value.wrapping_mul(u64::from(radix)).wrapping_add(u64::from(digit));
        rest = after;
    }
    (value, rest)
}

/// A number with a letter for its unit, and what follows.
fn with_unit(text: &[u8]) -> (u64, &[u8]) {
    let (value, rest) = digits(text, None);
    let unit = |letter: &u8| b"kmgtpe".iter().position(|unit| unit.eq_ignore_ascii_case(letter));
    match rest.first().and_then(unit) {
        Some(power) => (0..=power).fold((value, &rest[1..]), |(value, rest), _| (value << 10, rest)),
        None => (value, rest),
    }
}

fn bound(count: u64) -> u64 {
    if count == 0 { UNLIMITED } else { count }
}

/// A size in bytes, or in hundredths of the memory, in pages.
fn size_pages(text: &[u8], memory_pages: u64) -> Result<u64> {
    match with_unit(text) {
        (bytes, []) => Ok(bound(bytes.div_ceil(PAGE))),
        (hundredths, b"%") => {
            let bytes = hundredths.saturating_mul(memory_pages.saturating_mul(PAGE)) / 100;
            Ok(bound(bytes.div_ceil(PAGE)))
        }
        _ => Err(Errno::EINVAL),
    }
}

fn count(text: &[u8], most: u64) -> Result<u64> {
    match with_unit(text) {
        (count, []) if count <= most => Ok(bound(count)),
        _ => Err(Errno::EINVAL),
    }
}

fn number(text: &[u8], radix: u32) -> Result<u32> {
    u32::from_str_radix(core::str::from_utf8(text).map_err(|_| Errno::EINVAL)?, radix)
        .map_err(|_| Errno::EINVAL)
}

/// A user or group.
fn id(text: &[u8]) -> Result<u32> {
    if !text.first().is_some_and(u8::is_ascii_digit) {
        return Err(Errno::EINVAL);
    }
    match digits(text, None) {
        (id, []) => u32::try_from(id).ok().filter(|id| *id != u32::MAX).ok_or(Errno::EINVAL),
        _ => Err(Errno::EINVAL),
    }
}

fn huge(text: &[u8]) -> Result<Vec<u8>> {
    match text {
        b"never" => Ok(Vec::new()),
        b"always" | b"within_size" | b"advise" => Ok(text.to_vec()),
        _ => Err(Errno::EINVAL),
    }
}

/// A policy of where memory comes from. There is one node, of the number 0.
fn policy(text: &[u8]) -> Result<Vec<u8>> {
    let (kind, nodes) = match text.iter().position(|byte| *byte == b':') {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    let name = kind.split(|byte| *byte == b'=').next().unwrap_or_default();
    let flags = kind.get(name.len() + 1..);
    if flags.is_some_and(|flags| flags != b"static" && flags != b"relative") {
        return Err(Errno::EINVAL);
    }
    match (name, nodes) {
        (b"default", None) => Ok(Vec::new()),
        (b"local" | b"prefer", None) => Ok(b"local".to_vec()),
        (b"interleave", None) => Ok([kind, b":0"].concat()),
        (b"prefer" | b"interleave" | b"bind", Some(b"0")) => Ok(text.to_vec()),
        _ => Err(Errno::EINVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> core::result::Result<alloc::string::String, Errno> {
        let options = Options::parse(text.as_bytes(), 1000)?;
        Ok(alloc::string::String::from_utf8(options.shown(500)).unwrap())
    }

    #[test]
    fn options_are_read_and_shown_as_linux_does() {
        // Rounded up, where the default is rounded down.
        let odd = Options::parse(b"size=50%", 1001).unwrap().shown(500);
        assert_eq!(odd, b",size=2004k");
        for (text, expected) in [
            ("", ""),
            ("size=1m,uid=5,mode=0700", ",size=1024k,mode=700,uid=5"),
            (",,size=0x1001,gid=010,", ",size=8k,gid=8"),
            ("size=0,nr_inodes=0", ",size=0k,nr_inodes=0"),
            ("size=50%", ""),
            ("size=1m,size=2m,nr_blocks=3,nr_inodes=1k", ",size=12k,nr_inodes=1024"),
            ("mode=17777,huge=never,ro=3,sync,inode32,=5", ",mode=7777"),
            ("huge=advise,noswap,inode64", ",inode64,huge=advise,noswap"),
            ("mpol=prefer", ",mpol=local"),
            ("mpol=bind=static:0,mpol=interleave", ",mpol=interleave:0"),
        ] {
            assert_eq!(shown(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for text in [
            "size",
            "size=",
            "size=1mm",
            "size=-1",
            "nr_blocks=10%",
            "mode=9",
            "mode=",
            "mode=0x7",
            "uid=-1",
            "uid=4294967295",
            "uid=a",
            "huge=deny",
            "noswap=1",
            "inode64=1",
            "mpol=bind",
            "mpol=bind:7",
            "mpol=x",
            "mpol=local:0",
            "noatime",
            "bogus=1",
            "size=1m,,x",
        ] {
            assert_eq!(shown(text), Err(Errno::EINVAL), "{text}");
        }
    }

    #[test]
    fn a_remount_keeps_what_it_does_not_say() {
        let options = |text: &str| Options::parse(text.as_bytes(), 1000).unwrap();
        let before = options("size=1m,mode=700,huge=always");
        let after = before.changed_by(&options("nr_inodes=7,uid=4,mode=0")).unwrap();
        assert_eq!(after.shown(500), b",size=1024k,nr_inodes=7,mode=700,huge=always");
        assert_eq!(options("size=0").changed_by(&options("size=1m")), Err(Errno::EINVAL));
        assert_eq!(before.changed_by(&options("noswap")), Err(Errno::EINVAL));
    }
}
