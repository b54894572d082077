//! The lines of `dormouse events`: JSON, one each time a sandbox hibernates or wakes, or lacks memory.

use std::os::unix::net::UnixStream;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use vmm::hibernate::{TimerWake, micros};
use vmm::process;

use super::containers::ContainerId;
use super::stage::Cause;
use crate::control::{self, Figures, OOM};
use crate::status::SandboxState;

/// Most readers at a time.
const READERS_MAX: usize = 16;

/// A line. What does not apply is left out.
#[derive(Debug, Serialize)]
pub(super) struct Transition<'a> {
    /// Microseconds since 1970.
    pub time_us: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<SandboxState>,
    pub to: SandboxState,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<&'static str>,
    /// The kind of request, when the cause is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<&'static str>,
    /// The timer that is the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timer: Option<&'a TimerWake>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub figures: Option<&'a Figures>,
    /// Why a hibernation failed; then `from` and `to` are the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<&'a str>,
}

impl Transition<'_> {
    pub(super) fn new(from: Option<SandboxState>, to: SandboxState, cause: Option<Cause>) -> Self {
        let request = match cause {
            Some(Cause::Request(what)) => Some(what),
            _ => None,
        };
        Self {
            time_us: now_us(),
            from,
            to,
            cause: cause.map(Cause::name),
            request,
            timer: None,
            figures: None,
            error: None,
        }
    }
}

/// A line of another kind: the sandbox's kernel has killed a process, since there was no memory.
#[derive(Debug, Serialize)]
struct OomKill {
    time_us: u64,
    /// The kind of the event, by runc's name for it.
    r#type: &'static str,
}

/// A line of another kind: what keeps the sandbox awake, or whom it was woken for.
#[derive(Debug, Serialize)]
struct Reason<'a, T> {
    time_us: u64,
    r#type: &'static str,
    #[serde(flatten)]
    what: &'a T,
}

/// Microseconds since 1970.
pub(super) fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, micros)
}

/// The readers of events. One that does not read is dropped, never waited for.
#[derive(Debug, Default)]
pub(super) struct Readers(Vec<Reader>);

#[derive(Debug)]
struct Reader {
    stream: UnixStream,
    /// The container whose memory it asks about.
    of: ContainerId,
    /// It wants to hear of nothing else.
    oom_only: bool,
}

impl Readers {
    /// Tells a new one what the sandbox is now, and from now on what becomes of it, and of one of its containers.
    pub(super) fn add(&mut self, stream: UnixStream, of: ContainerId, state: SandboxState, oom_only: bool) {
        self.0.retain(|reader| !process::has_hung_up(&reader.stream));
        if self.0.len() >= READERS_MAX {
            let error = Some(format!("{READERS_MAX} others read its events already"));
            control::send_now(&stream, &control::Answer { error, ..control::Answer::default() });
        } else if oom_only || control::send_now(&stream, &Transition::new(None, state, None)) {
            self.0.push(Reader { stream, of, oom_only });
        }
    }

    /// A container is no more: nobody hears of it again.
    pub(super) fn end(&mut self, of: ContainerId) {
        self.0.retain(|reader| reader.of != of);
    }

    pub(super) fn tell(&mut self, transition: &Transition<'_>) {
        self.0.retain(|reader| reader.oom_only || control::send_now(&reader.stream, transition));
    }

    /// Tells what keeps the sandbox awake (`kept-awake`), or whom it was woken for (`woken-for`).
    pub(super) fn tell_why<T: Serialize>(&mut self, r#type: &'static str, what: &T) {
        let line = Reason { time_us: now_us(), r#type, what };
        self.0.retain(|reader| reader.oom_only || control::send_now(&reader.stream, &line));
    }

    /// A process of a container was killed, since there was no memory.
    pub(super) fn tell_of_oom(&mut self, of: ContainerId) {
        let line = OomKill { time_us: now_us(), r#type: OOM };
        self.0.retain(|reader| reader.of != of || control::send_now(&reader.stream, &line));
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use super::*;

    #[test]
    fn a_reader_that_does_not_read_is_dropped_and_the_others_are_not() {
        let mut readers = Readers::default();
        let (ours, lazy) = UnixStream::pair().unwrap();
        readers.add(ours, ContainerId::FIRST, SandboxState::Warm, false);
        let (ours, eager) = UnixStream::pair().unwrap();
        readers.add(ours, ContainerId::FIRST, SandboxState::Warm, false);
        let mut eager = BufReader::new(eager);
        let mut line = String::new();
        eager.read_line(&mut line).unwrap();
        assert!(line.contains("\"to\":\"warm\"") && !line.contains("from"), "{line}");
        let transition = Transition::new(
            Some(SandboxState::Warm),
            SandboxState::Hibernated,
            Some(Cause::Request("stdin")),
        );
        for _ in 0..10_000 {
            readers.tell(&transition);
            line.clear();
            eager.read_line(&mut line).unwrap();
            assert!(line.contains("\"request\":\"stdin\""), "{line}");
        }
        assert_eq!(readers.0.len(), 1);
        drop(lazy);
    }
}
