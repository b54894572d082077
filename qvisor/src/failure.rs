//! How the command fails: with one sentence on standard error, and an exit code. The words that other programs look for in the
//! sentence are `runtime::words`.

use crate::log;

/// Exit code of `do` for failures that are Dormouse's own, not the program's.
pub const EXIT_DO: u8 = 125;
/// Of `exec`, as runc has it: no shell's code for a program, so that it says something of its own.
pub const EXIT_EXEC: u8 = 255;
/// Of all other commands, as runc has it.
pub const EXIT_FAILURE: u8 = 1;

/// The exit code of a command line that is none: the first word that is neither an option nor its value names the command.
pub fn exit_code_of_usage(mut words: impl Iterator<Item = std::ffi::OsString>) -> u8 {
    const WITH_VALUES: [&str; 6] = ["--root", "--log", "--log-format", "--config", "--rootless", "--criu"];
    while let Some(word) = words.next() {
        if WITH_VALUES.iter().any(|option| word == *option) {
            words.next();
        } else if word == "do" {
            return EXIT_DO;
        } else if word == "exec" {
            return EXIT_EXEC;
        } else if !word.as_encoded_bytes().starts_with(b"-") {
            break;
        }
    }
    EXIT_FAILURE
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_that_was_meant_decides() {
        for (line, code) in [
            ("do --no-such-option", 125),
            ("--root /do --debug do -x", 125),
            ("exec", 255),
            ("create --bundle do", 1),
            ("", 1),
        ] {
            let code_of = exit_code_of_usage(line.split_whitespace().map(Into::into));
            assert_eq!(code_of, code, "{line}");
        }
    }
}
