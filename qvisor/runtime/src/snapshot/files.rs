//! Whether files are those that a manifest describes.

use std::fs::File;

use super::digest;
use super::error::Unfit;
use super::manifest::FileDigest;

/// Compares a file with its digest.
pub(super) fn check(file: &File, said: &FileDigest, name: &str) -> Result<(), Unfit> {
    let is_so = file.metadata()?.len() == said.bytes
        && blake3::Hash::from_hex(&said.digest).is_ok_and(|said| digest::of(file).is_ok_and(|is| is == said));
    if is_so { Ok(()) } else { Err(Unfit::Changed(name.into())) }
}
