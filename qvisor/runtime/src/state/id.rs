//! Names of sandboxes.

use std::fs::File;
use std::io;

use super::error::StateError;

/// Most bytes of a name: as many as a file's may have, as with runc.
const MAX: usize = 255;

/// A name for a sandbox that is safe as a file name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Id(String);

impl Id {
    /// Checks a name.
    pub fn new(text: &str) -> Result<Self, StateError> {
        let known = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        let dots = text.starts_with('.');
        if text.is_empty() || text.len() > MAX || !text.chars().all(known) || dots {
            return Err(StateError::BadId { id: text.chars().take(80).collect() });
        }
        Ok(Self(text.to_owned()))
    }

    /// A short name that no other sandbox is likely to have.
    #[must_use]
    pub fn random() -> Self {
        let mut bytes = [0_u8; 6];
        let read =
            File::open("/dev/urandom").and_then(|mut file| io::Read::read_exact(&mut file, &mut bytes));
        if read.is_err() {
            bytes[..4].copy_from_slice(&std::process::id().to_le_bytes());
        }
        Self(bytes.iter().map(|b| format!("{b:02x}")).collect())
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
