//! How the command fails: with one sentence on standard error, and exit code 125.

use crate::log;

/// Exit code of failures that are Dormouse's own, not the program's.
pub const EXIT_FAILURE: u8 = 125;

/// An error for the command line: one sentence.
pub type Failure = Box<dyn std::error::Error>;

/// Reports an error on standard error and in the log.
pub fn complain(error: &dyn std::error::Error) {
    log::write(log::Level::Error, &error.to_string());
}

/// Reports a failure that changes nothing, in the log or else on standard error.
pub fn warn(words: &str) {
    log::write(log::Level::Warning, words);
}

/// Writes a remark about a setting that is accepted without effect.
pub fn remark(words: &str) {
    log::write(log::Level::Info, words);
}

/// Writes to standard output; a closed pipe is the reader's choice, not an error.
pub fn say(text: &str) -> Result<u8, Failure> {
    use std::io::Write;
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(format!("cannot write to standard output: {error}; free some space").into())
        }
        _ => Ok(0),
    }
}
