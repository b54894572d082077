//! Failures as containerd reads them: a code, and words that its code and Docker's look for.

use containerd_shim_protos::ttrpc::{Code, Status};

/// Why a request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub code: Code,
    pub message: String,
}

/// The result of a request.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(Code::NOT_FOUND, message)
    }

    pub fn precondition(message: impl Into<String>) -> Self {
        Self::new(Code::FAILED_PRECONDITION, message)
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::INVALID_ARGUMENT, message)
    }

    /// Anything that containerd has no code for.
    pub fn other(message: impl std::fmt::Display) -> Self {
        Self::new(Code::UNKNOWN, message.to_string())
    }

    #[must_use]
    pub fn status(self) -> Status {
        let mut status = Status::new();
        status.code = self.code.into();
        status.message = self.message;
        status
    }
}

/// The failure of a signal, by what the runtime says: containerd takes a process or container that is gone for ended.
#[must_use]
pub fn of_kill(message: String) -> Failure {
    let lower = message.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    if has(&[
        "not running",
        "it is stopped",
        "already finished",
        "no such process",
        "has ended",
        "ended meanwhile",
    ]) {
        Failure::not_found("process already finished: not found")
    } else if has(&["does not exist", "no such sandbox", "no such container"]) {
        Failure::not_found("no such container: not found")
    } else {
        Failure::other(format!("unknown error after kill: {message}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_gone_is_not_found() {
        for gone in ["cannot …: it is stopped; start it first", "container not running", "No such process"]
        {
            assert_eq!(of_kill(gone.into()).code, Code::NOT_FOUND, "{gone}");
        }
        assert_eq!(of_kill("cannot find sandbox x: no such sandbox".into()).code, Code::NOT_FOUND);
        assert_eq!(of_kill("permission denied".into()).code, Code::UNKNOWN);
    }
}
