//! Why a sandbox is awake: what keeps it from falling asleep by itself, and what woke it last.

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

/// The value of a name in lines as `abi::hostcall::REPORT_KEPT_AWAKE` has them. A terminal may show it: other characters than those
/// that print are no value's.
fn value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    prints(found).then_some(found)
}

fn prints(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_graphic() || c == ' ')
}

impl Who {
    /// From such lines. What cannot be read is left out.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let text_of = |name| value(text, name).map(str::to_owned);
        let port = |name| value(text, name).and_then(|port| port.parse().ok());
        let id = |name| value(text, name).and_then(|id| id.parse().ok());
        Self {
            peer: text_of("peer"),
            peer_port: port("peer_port"),
            port: port("port"),
            pid: id("pid"),
            tid: id("tid"),
            process: text_of("process"),
            wait: text_of("wait"),
            wait_ms: value(text, "wait_ms").and_then(|ms| ms.parse().ok()),
        }
    }

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
    /// From such lines; `None`: nothing keeps it awake, or the kernel says something else than is known here.
    #[must_use]
    pub fn parse(text: &str, since_us: u64) -> Option<Self> {
        let kind = match value(text, "kind")? {
            "request" => KeptBy::Request,
            "perhaps-request" => KeptBy::PerhapsRequest,
            "exec" => KeptBy::Exec,
            "outbound" => KeptBy::Outbound,
            "lock" => KeptBy::Lock,
            "timer" => KeptBy::Timer,
            "computes" => KeptBy::Computes,
            _ => return None,
        };
        let given_up = value(text, "given_up").is_some();
        Some(Self { since_us, kind, who: Who::parse(text), given_up })
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

    const TEXT: &str = "kind request\npeer 10.0.0.9\npeer_port 4711\nport 80\npid 7\ntid 8\nprocess a b\nwait nanosleep\nwait_ms 6000\n";

    #[test]
    fn lines_become_reasons_and_words() {
        let kept = KeptAwake::parse(TEXT, 5).unwrap();
        assert_eq!((kept.kind, kept.who.pid, kept.who.port), (KeptBy::Request, Some(7), Some(80)));
        assert_eq!(
            kept.words(),
            "an open request from 10.0.0.9 port 4711 at port 80: a b (process 7) waits in nanosleep for 6000 ms"
        );
        let json = serde_json::to_value(&kept).unwrap();
        assert_eq!((&json["kind"], &json["peer_port"]), (&"request".into(), &4711.into()));
        assert_eq!(serde_json::from_value::<KeptAwake>(json).unwrap(), kept);
        assert!(KeptAwake::parse(&format!("{TEXT}given_up true\n"), 5).unwrap().given_up);
    }

    #[test]
    fn nothing_and_nonsense_are_no_reason() {
        for text in ["", "kind", "kind \n", "kind other\n", "kindrequest\n"] {
            assert_eq!(KeptAwake::parse(text, 0), None, "{text:?}");
        }
        assert_eq!(Who::parse("pid x\nport 70000\npeer\nprocess \u{1b}[2J\n"), Who::default());
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
        let who = Who::parse("peer ::1\nport 80\n");
        assert_eq!(by("request", Some("socket"), who).words(), "somebody who came from ::1 at port 80");
    }
}
