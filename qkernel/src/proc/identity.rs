//! The identity of the file system `/proc`.

use crate::pseudo::FileSystem;
use machine::errno::Errno;

/// `/proc`. It has no file by a name that somebody would make.
pub static PROC: FileSystem = FileSystem { dev: 0xf0, magic: 0x9fa0, no_new_names: Errno::ENOENT };
