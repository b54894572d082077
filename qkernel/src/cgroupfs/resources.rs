//! Files of the controllers, of groups below the container's own.
//!
//! `pids.max`, `cgroup.max.*` and `memory.oom.group` are held to. No swap is ever used, and nothing is taken away from a group
//! that has memory, so limits of swap and `memory.low` and `memory.min` are kept and hold anyway. Weights are kept and have no effect. Limits that
//! nothing would hold to (`cpu.max`, `memory.max`, `memory.high`, CPUs of a group's own) are refused.

use crate::cgroupfs::Group;
use crate::cgroupfs::own::{number, push_memory_stat, push_usage};
use crate::cgroupfs::processes::show_limit;
use crate::creds::Creds;
use crate::proc::push_cpu_list;
use crate::pseudo::{Out, parse_number};
use crate::task::groups::{Facts, MAX, Settings};
use crate::task::tree::PID_MAX;
use machine::errno::{Errno, Result};
use machine::platform;

fn facts(group: &Group) -> Result<Facts> {
    group.groups().facts(group.id)
}

fn settings(group: &Group) -> Result<Settings> {
    Ok(facts(group)?.settings)
}

fn set(group: &Group, change: impl FnOnce(&mut Settings)) -> Result<()> {
    group.groups().set(group.id, change)
}

/// A number in a range; `ERANGE` outside of it.
fn in_range(text: &str, least: u64, most: u64) -> Result<u64> {
    let value = u64::try_from(parse_number(text.as_bytes())?).map_err(|_| Errno::ERANGE)?;
    if (least..=most).contains(&value) { Ok(value) } else { Err(Errno::ERANGE) }
}

/// Bytes, with a suffix such as `K`, or `max`. They are whole pages.
fn bytes(text: &str) -> Result<u64> {
    if text == "max" {
        return Ok(MAX);
    }
    let suffix = text.char_indices().last().ok_or(Errno::EINVAL)?;
    let shift = match suffix.1.to_ascii_uppercase() {
        'K' => 10,
        'M' => 20,
        'G' => 30,
        'T' => 40,
        _ => 0,
    };
    let digits = if shift == 0 { text } else { &text[..suffix.0] };
    let value: u64 = digits.parse().map_err(|_| Errno::EINVAL)?;
    Ok(value.saturating_mul(1 << shift) & !0xfff)
}

// ---- processor time ----

pub fn cpu_stat(group: &Group, out: &mut Out) -> Result<()> {
    let used = group.used()?;
    push_usage(out, used.user, used.system);
    if facts(group)?.standing.has.contains(crate::task::groups::Controllers::CPU) {
        out.push(b"nr_periods 0\nnr_throttled 0\nthrottled_usec 0\nnr_bursts 0\nburst_usec 0\n");
    }
    Ok(())
}

pub fn cpu_max(group: &Group, out: &mut Out) -> Result<()> {
    number(out, format_args!("max {}", settings(group)?.cpu_period_us))
}

/// Only `max` with a period is accepted: a quota would not be held to.
pub fn set_cpu_max(group: &Group, text: &str, _: &Creds) -> Result<()> {
    let mut words = text.split_ascii_whitespace();
    let quota = words.next().ok_or(Errno::EINVAL)?;
    let period = match words.next() {
        Some(word) => word.parse::<u64>().map_err(|_| Errno::EINVAL)?,
        None => settings(group)?.cpu_period_us,
    };
    if words.next().is_some() || !(1000..=1_000_000).contains(&period) {
        return Err(Errno::EINVAL);
    }
    if quota != "max" {
        quota.parse::<u64>().map_err(|_| Errno::EINVAL)?;
        return Err(Errno::EOPNOTSUPP);
    }
    set(group, |settings| settings.cpu_period_us = period)
}

pub fn cpu_weight(group: &Group, out: &mut Out) -> Result<()> {
    let settings = settings(group)?;
    number(out, if settings.is_idle { 0 } else { settings.cpu_weight })
}

pub fn set_cpu_weight(group: &Group, text: &str, _: &Creds) -> Result<()> {
    if settings(group)?.is_idle {
        return Err(Errno::EINVAL);
    }
    let weight = in_range(text, 1, 10_000)?;
    set(group, |settings| settings.cpu_weight = weight)
}

pub fn cpu_idle(group: &Group, out: &mut Out) -> Result<()> {
    number(out, u8::from(settings(group)?.is_idle))
}

pub fn set_cpu_idle(group: &Group, text: &str, _: &Creds) -> Result<()> {
    let is_idle = in_range(text, 0, 1)? == 1;
    set(group, |settings| settings.is_idle = is_idle)
}

pub fn set_zero(_: &Group, text: &str, _: &Creds) -> Result<()> {
    if parse_number(text.as_bytes())? == 0 { Ok(()) } else { Err(Errno::EINVAL) }
}

pub fn cpus(_: &Group, out: &mut Out) -> Result<()> {
    push_cpu_list(out, all_cpus().into());
    Ok(())
}

fn all_cpus() -> u32 {
    (1_u32 << platform::cpus()) - 1
}

/// A group has all CPUs of its container: no others are accepted.
pub fn set_cpus(_: &Group, text: &str, _: &Creds) -> Result<()> {
    is_all_of(text, platform::cpus())
}

/// There is one memory node.
pub fn set_mems(_: &Group, text: &str, _: &Creds) -> Result<()> {
    is_all_of(text, 1)
}

/// Whether the text is empty, or the list of all the first `count` numbers.
fn is_all_of(text: &str, count: usize) -> Result<()> {
    let mut named = 0_u64;
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let [first, last] = [first, last].map(|word| word.trim().parse::<usize>().map_err(|_| Errno::EINVAL));
        let (first, last) = (first?, last?);
        if first > last || last >= 64 {
            return Err(Errno::EINVAL);
        }
        (first..=last).for_each(|number| named |= 1 << number);
    }
    let all = (1_u64 << count) - 1;
    if named == 0 || named & all == all { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
}

// ---- memory ----

pub fn memory_current(group: &Group, out: &mut Out) -> Result<()> {
    let (bytes, kernel) = group.memory()?;
    number(out, bytes.saturating_add(kernel))
}

pub fn memory_stat(group: &Group, out: &mut Out) -> Result<()> {
    let (bytes, kernel) = group.memory()?;
    push_memory_stat(out, bytes, kernel);
    Ok(())
}

pub fn memory_events(group: &Group, out: &mut Out) -> Result<()> {
    let counts = facts(group)?.counts;
    let (oom, killed, whole) = (counts.oom_kills, counts.oom_kills, counts.oom_group_kills);
    writeln!(out, "low 0\nhigh 0\nmax 0\noom {oom}\noom_kill {killed}\noom_group_kill {whole}");
    Ok(())
}

pub fn memory_low(group: &Group, out: &mut Out) -> Result<()> {
    show_limit(out, settings(group)?.memory_low)
}

pub fn set_memory_low(group: &Group, text: &str, _: &Creds) -> Result<()> {
    let value = bytes(text)?;
    set(group, |settings| settings.memory_low = value)
}

pub fn memory_min(group: &Group, out: &mut Out) -> Result<()> {
    show_limit(out, settings(group)?.memory_min)
}

pub fn set_memory_min(group: &Group, text: &str, _: &Creds) -> Result<()> {
    let value = bytes(text)?;
    set(group, |settings| settings.memory_min = value)
}

/// Only `max` is accepted: a limit would not be held to.
pub fn set_no_limit(_: &Group, text: &str, _: &Creds) -> Result<()> {
    if bytes(text)? == MAX { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
}

pub fn oom_group(group: &Group, out: &mut Out) -> Result<()> {
    number(out, u8::from(settings(group)?.is_oom_group))
}

pub fn set_oom_group(group: &Group, text: &str, _: &Creds) -> Result<()> {
    let value = in_range(text, 0, 1).map_err(|_| Errno::EINVAL)? == 1;
    set(group, |settings| settings.is_oom_group = value)
}

pub fn swap_high(group: &Group, out: &mut Out) -> Result<()> {
    show_limit(out, settings(group)?.swap_high)
}

pub fn set_swap_high(group: &Group, text: &str, _: &Creds) -> Result<()> {
    let value = bytes(text)?;
    set(group, |settings| settings.swap_high = value)
}

pub fn swap_max(group: &Group, out: &mut Out) -> Result<()> {
    show_limit(out, settings(group)?.swap_max)
}

pub fn set_swap_max(group: &Group, text: &str, _: &Creds) -> Result<()> {
    let value = bytes(text)?;
    set(group, |settings| settings.swap_max = value)
}

// ---- tasks ----

pub fn pids_max(group: &Group, out: &mut Out) -> Result<()> {
    show_limit(out, settings(group)?.pids_max)
}

pub fn set_pids_max(group: &Group, text: &str, _: &Creds) -> Result<()> {
    let most = match text {
        "max" => MAX,
        text => {
            let most = u64::try_from(parse_number(text.as_bytes())?).map_err(|_| Errno::EINVAL)?;
            if most >= PID_MAX.into() { MAX } else { most }
        }
    };
    set(group, |settings| settings.pids_max = most)
}

pub fn pids_current(group: &Group, out: &mut Out) -> Result<()> {
    number(out, facts(group)?.tasks)
}

pub fn pids_peak(group: &Group, out: &mut Out) -> Result<()> {
    number(out, facts(group)?.tasks_peak)
}

pub fn pids_events(group: &Group, out: &mut Out) -> Result<()> {
    number(out, format_args!("max {}", facts(group)?.counts.forks_refused))
}

// ---- devices ----

/// There are no block devices whose transfers could be limited.
pub fn set_of_device(_: &Group, text: &str, _: &Creds) -> Result<()> {
    let device = text.split_ascii_whitespace().next().and_then(|word| word.split_once(':'));
    let is_number = |word: &str| word.parse::<u32>().is_ok();
    let is_device = device.is_some_and(|(major, minor)| is_number(major) && is_number(minor));
    Err(if is_device { Errno::ENODEV } else { Errno::EINVAL })
}

pub fn io_weight(group: &Group, out: &mut Out) -> Result<()> {
    number(out, format_args!("default {}", settings(group)?.io_weight))
}

pub fn set_io_weight(group: &Group, text: &str, creds: &Creds) -> Result<()> {
    if text.contains(':') {
        return set_of_device(group, text, creds);
    }
    let weight = text.strip_prefix("default").unwrap_or(text).trim();
    let weight = in_range(weight, 1, 10_000)?;
    set(group, |settings| settings.io_weight = weight)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_suffixes_and_are_whole_pages() {
        for (text, value) in
            [("0", 0), ("8192", 8192), ("5000", 4096), ("4k", 4096), ("2M", 2 << 20), ("max", MAX)]
        {
            assert_eq!(bytes(text), Ok(value), "{text}");
        }
        for bad in ["", "-1", "k", "1x", "é"] {
            assert_eq!(bytes(bad), Err(Errno::EINVAL), "{bad}");
        }
    }

    #[test]
    fn lists_name_all_cpus_or_none() {
        for good in ["", "0-3", "0,1,2,3", "0-1,2-5"] {
            assert_eq!(is_all_of(good, 4), Ok(()), "{good}");
        }
        assert_eq!(is_all_of("0-2", 4), Err(Errno::EOPNOTSUPP));
        for bad in ["3-1", "x", "0-64", "-"] {
            assert_eq!(is_all_of(bad, 4), Err(Errno::EINVAL), "{bad}");
        }
    }
}
