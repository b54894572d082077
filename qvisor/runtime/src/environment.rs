//! Environments of processes.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Sets variables in an environment.
pub fn set_variables<'a>(env: &mut Vec<Vec<u8>>, set: impl IntoIterator<Item = &'a OsString>) {
    let name_of = |pair: &[u8]| pair.split(|b| *b == b'=').next().unwrap_or_default().to_vec();
    for pair in set {
        let name = name_of(pair.as_bytes());
        env.retain(|known| name_of(known) != name);
        env.push(pair.as_bytes().to_vec());
    }
}
