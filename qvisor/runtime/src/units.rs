//! Amounts as people write them.

use std::time::Duration;

use vmm::hibernate::{HomePolicy, Tier, Timers};

/// A number of bytes, with a suffix K, M, G or T (powers of 1024; `KiB` and the like are taken as well).
pub fn parse_size(text: &str) -> Result<u64, String> {
    let bad = || "expected a number of bytes, as 512M or 2G".to_owned();
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return Err(bad()),
    };
    let number: u64 = digits.parse().map_err(|_| bad())?;
    number.checked_mul(1 << shift).ok_or_else(bad)
}

/// A time, with a suffix ms, s, m or h; at least a millisecond.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let bad = || "expected a time of at least 1ms, as 30s or 5m".to_owned();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit_ms = match &text[digits.len()..] {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(bad()),
    };
    let number: u64 = digits.parse().map_err(|_| bad())?;
    match number.checked_mul(unit_ms) {
        Some(ms @ 1..) => Ok(Duration::from_millis(ms)),
        _ => Err(bad()),
    }
}

/// Reads how timers affect a sandbox that hibernates: `sleep`, `wake[:TIME]` or `coalesce:TIME`.
pub fn parse_timers(text: &str) -> Result<Timers, String> {
    let (way, time) = text.split_once(':').map_or((text, None), |(way, time)| (way, Some(time)));
    let timed = |time: &str| match parse_time(time)? {
        time if (Timers::LEAST..=Timers::MOST).contains(&time) => Ok(time),
        _ => Err("expected a time of at least 1s and at most 24h".to_owned()),
    };
    match (way, time) {
        ("sleep", None) => Ok(Timers::Sleep),
        ("wake", None) => Ok(Timers::Wake(Timers::AHEAD)),
        ("wake", Some(time)) => timed(time).map(Timers::Wake),
        ("coalesce", Some(time)) => timed(time).map(Timers::Coalesce),
        _ => Err("expected sleep, wake, wake:TIME or coalesce:TIME, as wake:30s".to_owned()),
    }
}

/// A time in seconds since 1970 as RFC 3339 has it, in UTC.
#[must_use]
pub fn date(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Civil from days; eras of 400 years that begin in March.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = year + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

/// Reads where memory is while a sandbox sleeps, as `disk`, `memory` or `memory,disk:10m`.
pub fn parse_home(text: &str) -> Result<HomePolicy, String> {
    let in_memory = |disk_after| HomePolicy { tier: Tier::Memory, disk_after };
    match (text, text.strip_prefix("memory,disk:")) {
        ("disk", _) => Ok(HomePolicy::default()),
        ("memory", _) => Ok(in_memory(None)),
        (_, Some(time)) => parse_time(time).map(|time| in_memory(Some(time))),
        _ => Err("give disk, memory, or memory,disk:TIME".into()),
    }
}

/// Reads a share in per cent, from 1 to 100.
pub fn parse_percent(text: &str) -> Result<u8, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse().ok();
    number.filter(|percent| (1..=100).contains(percent)).ok_or_else(|| "give a number from 1 to 100".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, size) in [("1K", 1024), ("2g", 2 << 30), ("512MiB", 512 << 20), ("4096", 4096)] {
            assert_eq!(parse_size(text), Ok(size), "{text}");
        }
        for text in ["", "K", "-1", "1.5G", "2 G", "99999999999999999999", "999999999T", "1X"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times() {
        for (text, ms) in [("30s", 30_000), ("500ms", 500), ("5m", 300_000), ("2h", 7_200_000)] {
            assert_eq!(parse_time(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "30", "0s", "-1s", "1.5s", "1d", "99999999999999999h", "s", "1 s"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn timers() {
        let of = Duration::from_secs;
        for (text, timers) in [
            ("sleep", Timers::Sleep),
            ("wake", Timers::Wake(of(30))),
            ("wake:1s", Timers::Wake(of(1))),
            ("coalesce:24h", Timers::Coalesce(of(86_400))),
        ] {
            assert_eq!(parse_timers(text), Ok(timers), "{text}");
        }
        for text in
            ["", "wake:", "wake:30", "wake:999ms", "wake:25h", "coalesce", "sleep:1s", "nap", "wake:1s:2s"]
        {
            assert!(parse_timers(text).is_err(), "{text}");
        }
    }

    #[test]
    fn homes() {
        let after = |ms| HomePolicy { tier: Tier::Memory, disk_after: Some(Duration::from_millis(ms)) };
        assert_eq!(parse_home("disk"), Ok(HomePolicy::default()));
        assert_eq!(parse_home("memory"), Ok(HomePolicy { disk_after: None, ..after(0) }));
        assert_eq!(parse_home("memory,disk:10m"), Ok(after(600_000)));
        for text in
            ["", "ram", "memory,", "memory,disk", "memory,disk:", "memory,disk:10", "disk:10m", "disk,memory"]
        {
            assert!(parse_home(text).is_err(), "{text}");
        }
        assert_eq!((parse_percent("10"), parse_percent("100%")), (Ok(10), Ok(100)));
        for text in ["", "0", "101", "-1", "1.5", "%"] {
            assert!(parse_percent(text).is_err(), "{text}");
        }
    }

    #[test]
    fn dates_are_right() {
        assert_eq!(date(0), "1970-01-01T00:00:00Z");
        assert_eq!(date(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(date(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(date(1_735_689_599), "2024-12-31T23:59:59Z");
    }
}
