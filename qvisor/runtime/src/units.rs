//! Amounts as people write them.

use std::time::Duration;

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
}
