use super::*;
use crate::word::to_usize;

const PARTY: Party = Party {
    peer: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 9],
    peer_port: 4711,
    port: 80,
    pid: 7,
    tid: 8,
    call: 35,
    wait_ms: 6000,
    name: *b"worker\0\0\0\0\0\0\0\0\0\0",
};
const USAGE: UsageFigures = UsageFigures {
    memory_bytes: 1,
    frames_bytes: 2,
    kernel_bytes: 3,
    limit_bytes: u64::MAX,
    peak_bytes: 5,
    out_of_memory: 6,
    oom_kills: 7,
    tasks: 8,
    user_ns: 9,
    system_ns: 10,
    periods: 11,
    throttled_periods: 12,
    throttled_ns: 13,
};
const TIMER: DueTimer = DueTimer {
    ahead_us: 60_000_000,
    late_us: 12,
    pid: 7,
    kind: TimerKind::PosixTimer as u32,
    name: [b'x'; 16],
};
const OTHER: ContainerId = ContainerId(3);

/// At least one report of each kind.
const ALL: &[Report<'static>] = &[
    Report::ContainerReady { container: ContainerId::FIRST },
    Report::ContainerRunning { container: OTHER },
    Report::ContainerFailed { container: OTHER, status: 127 << 8, why: b"no such file" },
    Report::ContainerEnded { container: OTHER, status: -1 },
    Report::ContainerPaused { container: OTHER, request: u64::MAX },
    Report::ExecStarted { exec: 4, pid: u32::MAX },
    Report::ExecFailed { exec: 4, code: 126, why: b"" },
    Report::ExecEnded { exec: 4, status: 9 },
    Report::Paused { request: 5 },
    Report::Resumed { request: 6 },
    Report::Idle,
    Report::IdleTimeout,
    Report::WakeEvent { by: WakeEvent::Timer },
    Report::LimitAnswered { request: 7, holds: false },
    Report::LimitAnswered { request: 8, holds: true },
    Report::Processes { container: OTHER, lines: b"1 0 0 S 1 4 0 sh\n" },
    Report::Usage { request: 9, usage: None },
    Report::Usage { request: 9, usage: Some(USAGE) },
    Report::OomKill { container: OTHER },
    Report::Timer { timer: TIMER },
    Report::KeptAwake { kept: None },
    Report::KeptAwake { kept: Some(Kept { by: KeptBy::Request, who: PARTY, given_up: true }) },
    Report::KeptAwake { kept: Some(Kept::by(KeptBy::Computes)) },
    Report::WokenFor { who: PARTY },
    Report::NotTaken { request: 10, why: b"why" },
    Report::WorkingSet { frames: &[3, 0, 0, 0, 7, 1, 0, 0] },
    Report::Written { lines: b"0 /data/base\n" },
];
const KINDS: u64 = 23;

fn words_of(report: &Report<'_>) -> [u64; 6] {
    report.words(|at| at as u64)
}

/// The bytes that belong to the words of a report which lives.
fn bytes_of(words: &[u64; 6]) -> &'static [u8] {
    let Segment { phys, len } = payload(words);
    // SAFETY: the words are of a report among the constants above, whose bytes are never written.
    unsafe { core::slice::from_raw_parts(phys as *const u8, to_usize(len).min(1 << 10)) }
}

#[test]
fn each_report_is_read_as_it_was_written() {
    let mut kinds = [false; to_usize(KINDS) + 1];
    for report in ALL {
        let words = words_of(report);
        let bytes = if payload(&words).len == 0 { &[] } else { bytes_of(&words) };
        assert_eq!(Report::parse(&words, bytes).as_ref(), Some(report));
        kinds[to_usize(words[0])] = true;
    }
    assert!(!kinds[0] && kinds[1..].iter().all(|is_there| *is_there), "a kind without a report: {kinds:?}");
}

#[test]
fn a_text_is_cut_off_and_a_struct_is_not() {
    for report in ALL {
        let mut words = words_of(report);
        words[4] = u64::MAX;
        let most = payload(&words).len;
        assert!(most <= PROCESSES_MAX_BYTES, "{report:?}");
        let is_text = matches!(
            report,
            Report::ContainerFailed { .. }
                | Report::ExecFailed { .. }
                | Report::Processes { .. }
                | Report::NotTaken { .. }
                | Report::WorkingSet { .. }
                | Report::Written { .. }
        );
        let bytes = [b'a'; 256];
        assert_eq!(Report::parse(&words, &bytes).is_some(), is_text, "{report:?}");
    }
    let words = words_of(&Report::WokenFor { who: PARTY });
    assert_eq!(Report::parse(&words, &[0; to_usize(Party::BYTES) - 1]), None);
    assert!(Report::parse(&words, &[0; to_usize(Party::BYTES)]).is_some());
    let words = words_of(&Report::Timer { timer: TIMER });
    assert_eq!(Report::parse(&words, &[0; to_usize(DueTimer::BYTES)]), None, "a deadline of no kind");
}

/// Whatever the words are: those that are read as a report are the words of that report.
#[test]
fn garbage_is_refused() {
    const ODD: [u64; 6] = [0, 1, 8, 256, 1 << 32, u64::MAX];
    let bytes = [1; 128];
    let mut read = 0;
    for kind in (0..=KINDS + 1).chain([1 << 32, u64::MAX]) {
        for choice in 0..ODD.len().pow(5) {
            let mut words = [kind; 6];
            let mut left = choice;
            for word in &mut words[1..] {
                *word = ODD[left % ODD.len()];
                left /= ODD.len();
            }
            let len = to_usize(payload(&words).len).min(bytes.len());
            let Some(report) = Report::parse(&words, &bytes[..len]) else { continue };
            read += 1;
            let again = report.words(|_| words[3]);
            assert_eq!((&again[..4], again[5]), (&words[..4], words[5]), "{report:?}");
            assert!(again[4] == words[4] || again[4] == len as u64, "{report:?}");
        }
    }
    assert!(read > 0);
    for words in [[0; 6], [KINDS + 1, 0, 0, 0, 0, 0], [u64::MAX; 6]] {
        assert_eq!(Report::parse(&words, &[]), None);
    }
}

#[test]
fn numbers_are_those_of_their_places() {
    assert!(WakeEvent::ALL.iter().zip(1..).all(|(event, number)| *event as u64 == number));
    assert!(KeptBy::ALL.iter().zip(1..).all(|(by, number)| *by as u64 == number));
    assert!(TimerKind::ALL.iter().zip(1..).all(|(kind, number)| *kind as u32 == number));
}
