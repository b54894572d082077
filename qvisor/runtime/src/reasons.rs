//! Why a sandbox is awake: what keeps it from falling asleep by itself, and what woke it last.

use std::net::Ipv6Addr;

use abi::report::{self, CALL_NONE, CALL_TIMER, Kept, Party};
use serde::{Deserialize, Serialize};
use vmm::hibernate::TimerWake;

use crate::status::SandboxState;

/// The answer to `dormouse why`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reasons {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_state: Option<SandboxState>,
    pub kept_awake: Option<KeptAwake>,
    pub woken_by: Option<WokenBy>,
}

/// The kind of thing that keeps a sandbox awake which has been idle for long enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeptBy {
    /// A request that came over an accepted connection is open, and a task waits for a time.
    Request,
    /// A request may be open: a loop hides what it waits for.
    PerhapsRequest,
    /// An exec'd process is at work.
    Exec,
    /// A task waits with a time-out for the answer to what the sandbox asked.
    Outbound,
    /// It has an exclusive lock of a file that others may open, or a task waits for such a lock.
    Lock,
    /// Work goes on for which a deadline woke it.
    Timer,
    /// It uses processor time.
    Computes,
}

/// The reason why a sandbox is kept awake, and since when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptAwake {
    /// Microseconds since 1970.
    pub since_us: u64,
    pub kind: KeptBy,
    #[serde(flatten)]
    pub who: Who,
    /// It was kept awake for as long as may be, and falls asleep all the same.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub given_up: bool,
}

/// The reason why a sandbox was woken, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WokenBy {
    /// Microseconds since 1970.
    pub time_us: u64,
    /// The cause by its name in `dormouse events`.
    pub cause: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    #[serde(flatten)]
    pub who: Who,
}

/// The people and processes concerned, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Who {
    /// The address and the port of the other side, and the local port of an accepted connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_port: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Ids inside the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// The system call in which the task waits, and for how long at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
}

/// Whether a terminal may show a text that a program has chosen.
fn prints(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_graphic() || c == ' ')
}

/// A value that is known, where 0 stands for one that is not.
fn known<T: PartialEq + Default>(value: T) -> Option<T> {
    Some(value).filter(|value| *value != T::default())
}

impl From<&Party> for Who {
    fn from(party: &Party) -> Self {
        let peer = known(party.peer).map(|peer| Ipv6Addr::from(peer).to_canonical().to_string());
        let who =
            Self { peer, peer_port: known(party.peer_port), port: known(party.port), ..Self::default() };
        if party.pid == 0 {
            return who;
        }
        let name = party.name.split(|byte| *byte == 0).next().unwrap_or_default();
        let wait = name_of_call(party.call);
        Self {
            pid: Some(party.pid),
            tid: known(party.tid),
            process: Some(name.escape_ascii().to_string()),
            wait_ms: wait.as_ref().map(|_| party.wait_ms),
            wait,
            ..who
        }
    }
}

/// The system calls in which tasks wait for a time.
fn name_of_call(call: u32) -> Option<String> {
    let name = match call {
        0 | 19 | 45 | 47 | 299 => "receive",
        1 | 20 | 44 | 46 | 307 => "send",
        7 | 271 => "poll",
        23 | 270 => "select",
        35 | 230 => "nanosleep",
        128 => "sigtimedwait",
        202 | 449 | 455 => "futex",
        208 | 232 | 281 | 441 => "epoll",
        220 => "semtimedop",
        43 | 288 => "accept",
        CALL_TIMER => "timer",
        CALL_NONE => return None,
        _ => return Some(format!("call-{call}")),
    };
    Some(name.into())
}

impl Who {
    /// Whoever waits for a timer.
    #[must_use]
    pub fn of_timer(timer: &TimerWake) -> Self {
        let shown = |text: &String| Some(text.clone()).filter(|text| !text.is_empty() && prints(text));
        Self {
            pid: Some(timer.pid).filter(|pid| *pid != 0),
            process: shown(&timer.process),
            wait: shown(&timer.kind),
            ..Self::default()
        }
    }

    /// In words, behind what it is about; empty if nothing is known.
    fn words(&self) -> String {
        let mut words = String::new();
        if let Some(peer) = &self.peer {
            let port = self.peer_port.map_or_else(String::new, |port| format!(" port {port}"));
            words += &format!(" {peer}{port}");
        }
        if let Some(port) = self.port {
            words += &format!(" at port {port}");
        }
        if let Some(process) = &self.process {
            let pid = self.pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
            let wait = self.wait.as_ref().map_or_else(String::new, |wait| {
                let ms = self.wait_ms.map_or_else(String::new, |ms| format!(" for {ms} ms"));
                format!(" waits in {wait}{ms}")
            });
            words += &format!(": {process}{pid}{wait}");
        }
        words
    }
}

impl KeptAwake {
    /// A reason that the kernel tells now.
    #[must_use]
    pub fn new(kept: &Kept, since_us: u64) -> Self {
        let kind = match kept.by {
            report::KeptBy::Request => KeptBy::Request,
            report::KeptBy::PerhapsRequest => KeptBy::PerhapsRequest,
            report::KeptBy::Exec => KeptBy::Exec,
            report::KeptBy::Outbound => KeptBy::Outbound,
            report::KeptBy::Lock => KeptBy::Lock,
            report::KeptBy::Timer => KeptBy::Timer,
            report::KeptBy::Computes => KeptBy::Computes,
        };
        Self { since_us, kind, who: Who::from(&kept.who), given_up: kept.given_up }
    }

    /// In words.
    #[must_use]
    pub fn words(&self) -> String {
        let what = match self.kind {
            KeptBy::Request => "an open request from",
            KeptBy::PerhapsRequest => "what may be an open request from",
            KeptBy::Exec => "an exec'd process",
            KeptBy::Outbound => "a wait with a time-out for the answer of",
            KeptBy::Lock => "a lock of a shared file",
            KeptBy::Timer => "work for which a timer woke it",
            KeptBy::Computes => "what it computes",
        };
        let given_up = if self.given_up { ", but no longer: --awake-at-most is over" } else { "" };
        format!("{what}{}{given_up}", self.who.words())
    }
}

impl WokenBy {
    /// In words.
    #[must_use]
    pub fn words(&self) -> String {
        let what = match (self.cause.as_str(), self.request.as_deref()) {
            ("request", Some("socket")) if self.who.peer.is_some() => "somebody who came from",
            ("request", Some("socket")) => "something that came for a socket",
            ("request", Some("stdin")) => "something on a stream",
            ("request", Some("signal")) => "a signal",
            ("request", Some("exec")) => "an exec'd process that came in",
            ("request", Some(other)) => other,
            (cause, _) => cause,
        };
        format!("{what}{}", self.who.words())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker that answers a request.
    fn party() -> Party {
        let mut name = [0; 16];
        name[..3].copy_from_slice(b"a b");
        Party {
            peer: abi::address::of_v4([10, 0, 0, 9]),
            peer_port: 4711,
            port: 80,
            pid: 7,
            tid: 8,
            call: 35,
            wait_ms: 6000,
            name,
        }
    }

    #[test]
    fn reports_become_reasons_and_words() {
        let report = Kept { who: party(), ..Kept::by(report::KeptBy::Request) };
        let kept = KeptAwake::new(&report, 5);
        assert_eq!((kept.kind, kept.who.pid, kept.who.port), (KeptBy::Request, Some(7), Some(80)));
        assert_eq!(
            kept.words(),
            "an open request from 10.0.0.9 port 4711 at port 80: a b (process 7) waits in nanosleep for 6000 ms"
        );
        let json = serde_json::to_value(&kept).unwrap();
        assert_eq!((&json["kind"], &json["peer_port"]), (&"request".into(), &4711.into()));
        assert_eq!(serde_json::from_value::<KeptAwake>(json).unwrap(), kept);
        assert!(KeptAwake::new(&Kept { given_up: true, ..report }, 5).given_up);
    }

    #[test]
    fn what_is_not_known_is_left_out_and_what_does_not_print_is_escaped() {
        assert_eq!(Who::from(&Party::UNKNOWN), Who::default());
        let odd = Party { name: *b"\x1b[2J\n\0aaaaaaaaaa", call: 9999, ..party() };
        let who = Who::from(&odd);
        assert_eq!((who.process.as_deref(), who.wait.as_deref()), (Some("\\x1b[2J\\n"), Some("call-9999")));
        let alone = Who::from(&Party { pid: 0, ..odd });
        assert!(alone.process.is_none() && alone.wait.is_none() && alone.peer.is_some());
    }

    #[test]
    fn what_woke_it_is_said_with_what_is_known() {
        let by = |cause: &str, request: Option<&str>, who| WokenBy {
            time_us: 1,
            cause: cause.into(),
            request: request.map(str::to_owned),
            who,
        };
        assert_eq!(by("order", None, Who::default()).words(), "order");
        assert_eq!(by("request", Some("socket"), Who::default()).words(), "something that came for a socket");
        let timer =
            TimerWake { pid: 7, process: "cron".into(), kind: "timerfd".into(), ..TimerWake::default() };
        let woken = by("request", Some("timer"), Who::of_timer(&timer));
        assert_eq!(woken.words(), "timer: cron (process 7) waits in timerfd");
        let odd = Who::of_timer(&TimerWake { process: "a\npeer 10.0.0.1".into(), ..timer });
        assert!(odd.peer.is_none() && odd.process.is_none());
        let mut peer = [0; 16];
        peer[15] = 1;
        let who = Who::from(&Party { peer, port: 80, ..Party::UNKNOWN });
        assert_eq!(by("request", Some("socket"), who).words(), "somebody who came from ::1 at port 80");
    }
}
