//! The ways of packing, by name.

use std::{fmt, str::FromStr};

use crate::error::StyleError;

/// How pieces are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Pieces stay as they are.
    None,
    /// LZ4's blocks, without a frame.
    Lz4,
    /// Zstandard, with a level from 1 to 19.
    Zstd(u8),
    /// DEFLATE with the codes that RFC 1951 fixes.
    DeflateFixed,
    /// DEFLATE with codes of each piece's own, and a header that gives them.
    DeflateDynamic,
    /// DEFLATE with the codes of a [`TableSet`](crate::TableSet) for many pieces, which have no header then (Sabre, section 3).
    DeflateCanned,
}

impl Style {
    /// zstd's level where none is given.
    pub const ZSTD_LEVEL: u8 = 1;

    /// Every style once, zstd with its usual level.
    pub const ALL: [Self; 6] = [
        Self::None,
        Self::Lz4,
        Self::Zstd(Self::ZSTD_LEVEL),
        Self::DeflateFixed,
        Self::DeflateDynamic,
        Self::DeflateCanned,
    ];
}

impl FromStr for Style {
    type Err = StyleError;

    fn from_str(text: &str) -> Result<Self, StyleError> {
        let (name, level) = match text.split_once(':') {
            Some((name, level)) => (name, Some(level)),
            None => (text, None),
        };
        let style = match name {
            "none" => Self::None,
            "lz4" => Self::Lz4,
            "deflate-fixed" => Self::DeflateFixed,
            "deflate-dynamic" => Self::DeflateDynamic,
            "deflate-canned" => Self::DeflateCanned,
            "zstd" => {
                let level = level.map_or(Ok(Self::ZSTD_LEVEL), str::parse);
                return match level {
                    Ok(level @ 1..=19) => Ok(Self::Zstd(level)),
                    _ => Err(StyleError::Level(text.to_owned())),
                };
            }
            _ => return Err(StyleError::Unknown(text.to_owned())),
        };
        if level.is_some() { Err(StyleError::NoLevels(text.to_owned())) } else { Ok(style) }
    }
}

impl fmt::Display for Style {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Lz4 => "lz4",
            Self::Zstd(Self::ZSTD_LEVEL) => "zstd",
            Self::Zstd(level) => return write!(f, "zstd:{level}"),
            Self::DeflateFixed => "deflate-fixed",
            Self::DeflateDynamic => "deflate-dynamic",
            Self::DeflateCanned => "deflate-canned",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for style in Style::ALL.into_iter().chain([Style::Zstd(19), Style::Zstd(3)]) {
            assert_eq!(style.to_string().parse(), Ok(style));
        }
        assert_eq!("zstd:1".parse(), Ok(Style::Zstd(1)));
    }

    #[test]
    fn what_is_no_style_is_refused_in_a_sentence() {
        for text in [
            "", "gzip", "LZ4", "zstd:", "zstd:0", "zstd:20", "zstd:-1", "zstd:1:1", "lz4:1", "none:",
            "deflate",
        ] {
            let error = text.parse::<Style>().unwrap_err().to_string();
            assert!(error.starts_with("cannot use the codec ") && error.contains("; "), "{error}");
        }
    }
}
