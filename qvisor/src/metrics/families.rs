//! The families of metrics; `docs/metrics.md` lists them.

use std::collections::BTreeMap;
use std::fmt::Write;

use runtime::control::ContainerUsage;
use runtime::overview::Glance;
use runtime::status::SandboxState;
use vmm::hibernate::stats::{CauseCount, Stats};

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Gauge,
    Counter,
    Histogram,
}

use Kind::{Counter, Gauge, Histogram};

/// Every family: its name without `dormouse_`, its kind and its help. Names stay as they are.
const FAMILIES: [(&str, Kind, &str); 32] = [
    ("build_info", Gauge, "Always 1; the version is a label."),
    ("sandboxes", Gauge, "Sandboxes, by their status and what they do."),
    ("sandbox_up", Gauge, "Whether the sandbox's VMM answers."),
    ("sandbox_info", Gauge, "Always 1; the status, the pod and the codec are labels."),
    ("sandbox_state", Gauge, "1 for the state that the sandbox is in, 0 for the others."),
    ("sandbox_unchanged_seconds", Gauge, "How long it has been asleep or awake without a break."),
    ("sandbox_asleep_seconds_total", Counter, "How long it has been asleep in all."),
    ("sandbox_memory_bytes", Gauge, "Memory of the host, by class."),
    ("sandbox_swapped_bytes", Gauge, "Memory of programs that is on disk, unpacked."),
    ("sandbox_disk_bytes", Gauge, "Room that it takes on disk, by file."),
    ("sandbox_hibernations_total", Counter, "How often it fell asleep, by cause."),
    ("sandbox_hibernation_failures_total", Counter, "How often it could not fall asleep."),
    ("sandbox_wakes_total", Counter, "How often it woke, by cause and kind of request."),
    ("sandbox_wake_seconds", Histogram, "From a wake's cause until its programs go on."),
    ("sandbox_kept_awake", Gauge, "1 while something keeps an idle sandbox awake; what is a label."),
    ("sandbox_swap_in_faults_total", Counter, "Faults that brought pages back from disk."),
    ("sandbox_swap_in_pages_total", Counter, "Pages that came back that way."),
    ("sandbox_disk_read_bytes_total", Counter, "Read from the sleepers' files."),
    ("sandbox_disk_written_bytes_total", Counter, "Written to the sleepers' files."),
    ("sandbox_returned_bytes_total", Counter, "Free memory given back while awake."),
    ("sandbox_answered_probes_total", Counter, "Probes by a command answered without a wake."),
    ("sandbox_unknown_calls_total", Counter, "System calls that the kernel does not have, refused."),
    ("container_info", Gauge, "Always 1; the status and the pod are labels."),
    ("container_memory_bytes", Gauge, "Memory charged to the container."),
    ("container_memory_limit_bytes", Gauge, "Its limit, where it has one."),
    ("container_hibernated_bytes", Gauge, "Of its programs' memory, on disk."),
    ("container_oom_kills_total", Counter, "Processes killed for lack of memory."),
    ("container_memory_refusals_total", Counter, "How often there was no memory for it."),
    ("container_tasks", Gauge, "Its processes and threads."),
    ("container_cpu_seconds_total", Counter, "Processor time, by mode."),
    ("container_throttled_periods_total", Counter, "Periods of its processor limit in which it waited."),
    ("container_throttled_seconds_total", Counter, "How long it waited for its processor limit."),
];

const STATES: [SandboxState; 5] = [
    SandboxState::Warm,
    SandboxState::Running,
    SandboxState::Hibernated,
    SandboxState::HibernateRunning,
    SandboxState::WokenUp,
];

/// Upper bounds of the histogram in microseconds: those of `Stats::wake_times` from 256 µs to 33.6 s.
const WAKE_BOUNDS: std::ops::RangeInclusive<u32> = 8..=25;

/// Causes, and kinds of requests, that most sandboxes meet.
const HIBERNATION_CAUSES: [(&str, &str); 3] = [("idle-timeout", ""), ("order", ""), ("signal", "")];
const WAKE_CAUSES: [(&str, &str); 7] = [
    ("order", ""),
    ("signal", ""),
    ("request", "exec"),
    ("request", "signal"),
    ("request", "socket"),
    ("request", "stdin"),
    ("request", "timer"),
];
/// Most that are taken of what a VMM says.
const CAUSES_MAX: usize = 64;

/// The text of all metrics.
pub fn page(glances: &[Glance]) -> String {
    let mut samples = Samples::default();
    samples.add("build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    let mut counts = BTreeMap::new();
    for glance in glances {
        let does = glance.state.sandbox_state.map(|state| state.to_string()).unwrap_or_default();
        if !glance.is_further {
            *counts.entry((glance.state.status.to_string(), does)).or_insert(0.0) += 1.0;
            sandbox(&mut samples, glance);
        }
        container(&mut samples, glance);
    }
    for ((status, state), count) in counts {
        samples.add("sandboxes", &[("status", &status), ("state", &state)], count);
    }
    samples.text()
}

fn sandbox(samples: &mut Samples, glance: &Glance) {
    let id = glance.state.id.as_str();
    if glance.is_up() {
        samples.add("sandbox_up", &[("id", id)], f64::from(u8::from(!glance.is_silent)));
    }
    let (status, pod) = (glance.state.status.to_string(), glance.pod().unwrap_or_default());
    // A VMM may say anything.
    let is_name =
        |codec: &&str| codec.len() <= 32 && codec.bytes().all(|b| b.is_ascii_graphic() || b == b' ');
    let codec = glance.stats.as_ref().map(|stats| stats.codec.as_str()).filter(is_name).unwrap_or_default();
    samples.add("sandbox_info", &[("id", id), ("status", &status), ("pod", &pod), ("codec", codec)], 1.0);
    for state in STATES.into_iter().filter(|_| glance.state.sandbox_state.is_some()) {
        let is_in = f64::from(u8::from(glance.state.sandbox_state == Some(state)));
        samples.add("sandbox_state", &[("id", id), ("state", &state.to_string())], is_in);
    }
    let kept = glance.reasons.as_ref().and_then(|reasons| reasons.kept_awake.as_ref());
    if let Some(kept) = kept.filter(|kept| !kept.given_up) {
        let kind = serde_json::to_value(kept.kind).unwrap_or_default();
        samples.add("sandbox_kept_awake", &[("id", id), ("by", kind.as_str().unwrap_or_default())], 1.0);
    }
    if let Some(stats) = &glance.stats {
        figures(samples, id, stats);
    }
}

fn figures(samples: &mut Samples, id: &str, stats: &Stats) {
    let memory = &stats.memory;
    for (name, value) in [
        ("sandbox_unchanged_seconds", seconds(stats.unchanged_ms, 1e3)),
        ("sandbox_asleep_seconds_total", seconds(stats.asleep_ms, 1e3)),
        ("sandbox_swapped_bytes", count(memory.swapped_bytes)),
        ("sandbox_hibernation_failures_total", count(stats.failed_hibernations)),
        ("sandbox_swap_in_faults_total", count(stats.swap_in_faults)),
        ("sandbox_swap_in_pages_total", count(stats.swap_in_pages)),
        ("sandbox_disk_read_bytes_total", count(stats.read_bytes)),
        ("sandbox_disk_written_bytes_total", count(stats.written_bytes)),
        ("sandbox_returned_bytes_total", count(stats.returned_bytes)),
        ("sandbox_answered_probes_total", count(stats.answered_probes)),
        ("sandbox_unknown_calls_total", count(stats.unknown_calls)),
    ] {
        samples.add(name, &[("id", id)], value);
    }
    for (class, bytes) in [
        ("programs", memory.user_resident_bytes),
        ("kernel-heap", memory.kernel_heap_bytes),
        ("file-mapped", memory.file_mapped_bytes),
        ("working-set", memory.working_set_bytes),
        ("vmm-rss", memory.vmm_rss_bytes),
        ("vmm-pss", memory.vmm_pss_bytes),
        ("home", memory.home_bytes),
    ] {
        samples.add("sandbox_memory_bytes", &[("id", id), ("class", class)], count(bytes));
    }
    for (file, bytes) in [
        ("swap", memory.swap_file_bytes),
        ("reap", memory.reap_file_bytes),
        ("packed", memory.packed_file_bytes),
    ] {
        samples.add("sandbox_disk_bytes", &[("id", id), ("file", file)], count(bytes));
    }
    for ((cause, _), times) in by_cause(&stats.hibernations_by, &HIBERNATION_CAUSES) {
        samples.add("sandbox_hibernations_total", &[("id", id), ("cause", cause)], count(times));
    }
    for ((cause, request), times) in by_cause(&stats.wakes_by, &WAKE_CAUSES) {
        let labels = [("id", id), ("cause", cause), ("request", request)];
        samples.add("sandbox_wakes_total", &labels, count(times));
    }
    wake_times(samples, id, stats);
}

/// Counts by cause and request, with a zero for each of the usual ones: a counter that begins above zero hides its first step
/// from `rate`. A VMM may say anything: its names are taken as far as they are words, and not many.
fn by_cause<'a>(
    said: &'a [CauseCount],
    usual: &[(&'static str, &'static str)],
) -> BTreeMap<(&'a str, &'a str), u64> {
    let is_word = |text: &str| text.len() <= 24 && text.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
    let mut counts: BTreeMap<(&str, &str), u64> = usual.iter().map(|names| (*names, 0)).collect();
    for by in said.iter().take(CAUSES_MAX) {
        let request = by.request.as_deref().unwrap_or_default();
        if is_word(&by.cause) && is_word(request) {
            let times = counts.entry((&by.cause, request)).or_default();
            *times = times.saturating_add(by.count);
        }
    }
    counts
}

/// The buckets hold together whatever a VMM says: none counts more than the next one, nor than all wakes.
fn wake_times(samples: &mut Samples, id: &str, stats: &Stats) {
    let wakes_below = |bound: u64| {
        let classes = stats.wake_times.iter().filter(|class| class.below_us <= bound);
        classes.fold(0, |wakes: u64, class| wakes.saturating_add(class.wakes))
    };
    for power in WAKE_BOUNDS {
        let bound = 1_u64 << power;
        let labels = [("id", id), ("le", &seconds(bound, 1e6).to_string())];
        samples.add_to("sandbox_wake_seconds", "_bucket", &labels, count(wakes_below(bound)));
    }
    let all = count(stats.wakes.max(wakes_below(u64::MAX)));
    samples.add_to("sandbox_wake_seconds", "_bucket", &[("id", id), ("le", "+Inf")], all);
    samples.add_to("sandbox_wake_seconds", "_sum", &[("id", id)], seconds(stats.wakes_us, 1e6));
    samples.add_to("sandbox_wake_seconds", "_count", &[("id", id)], all);
}

fn container(samples: &mut Samples, glance: &Glance) {
    let id = glance.state.id.as_str();
    let (status, pod) = (glance.state.status.to_string(), glance.pod().unwrap_or_default());
    samples.add("container_info", &[("id", id), ("status", &status), ("pod", &pod)], 1.0);
    let Some(usage) = glance.usage else { return };
    let ContainerUsage { memory_bytes, hibernated_bytes, oom_kills, out_of_memory, tasks, .. } = usage;
    for (name, value) in [
        ("container_memory_bytes", memory_bytes),
        ("container_hibernated_bytes", hibernated_bytes),
        ("container_oom_kills_total", oom_kills),
        ("container_memory_refusals_total", out_of_memory),
        ("container_tasks", tasks),
        ("container_throttled_periods_total", usage.throttled_periods),
    ] {
        samples.add(name, &[("id", id)], count(value));
    }
    if let Some(limit) = usage.limit_bytes {
        samples.add("container_memory_limit_bytes", &[("id", id)], count(limit));
    }
    samples.add("container_throttled_seconds_total", &[("id", id)], seconds(usage.throttled_ns, 1e9));
    for (mode, ns) in [("user", usage.user_ns), ("system", usage.system_ns)] {
        samples.add("container_cpu_seconds_total", &[("id", id), ("mode", mode)], seconds(ns, 1e9));
    }
}

/// The format's numbers are floating point: whole up to 2^53.
#[allow(clippy::cast_precision_loss)]
fn count(value: u64) -> f64 {
    value as f64
}

fn seconds(value: u64, to_the_second: f64) -> f64 {
    count(value) / to_the_second
}

/// Lines of samples by family.
#[derive(Default)]
struct Samples(BTreeMap<&'static str, String>);

impl Samples {
    fn add(&mut self, family: &'static str, labels: &[(&str, &str)], value: f64) {
        self.add_to(family, "", labels, value);
    }

    /// `suffix`: of a histogram's lines.
    fn add_to(&mut self, family: &'static str, suffix: &str, labels: &[(&str, &str)], value: f64) {
        let labels: Vec<_> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let lines = self.0.entry(family).or_default();
        // Writing to a string cannot fail.
        let _ = writeln!(lines, "dormouse_{family}{suffix}{{{}}} {value}", labels.join(","));
    }

    fn text(self) -> String {
        let mut text = String::new();
        for (name, kind, help) in FAMILIES {
            let Some(lines) = self.0.get(name) else { continue };
            let kind = match kind {
                Gauge => "gauge",
                Counter => "counter",
                Histogram => "histogram",
            };
            text += &format!("# HELP dormouse_{name} {help}\n# TYPE dormouse_{name} {kind}\n{lines}");
        }
        text
    }
}

/// A label's value as the format wants it.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use runtime::state::OciState;
    use runtime::status::Status;
    use vmm::hibernate::stats::WakeClass;

    use super::*;

    fn glance() -> Glance {
        let state = OciState {
            oci_version: "1.2.0".into(),
            id: "a\"b\\c".into(),
            status: Status::Running,
            pid: 1,
            bundle: "/".into(),
            annotations: [("sandbox-namespace", "ns"), ("sandbox-name", "p\n")]
                .map(|(name, value)| (format!("io.kubernetes.cri.{name}"), value.to_owned()))
                .into(),
            sandbox_state: Some(SandboxState::Hibernated),
            hibernate_error: None,
        };
        let by = CauseCount { cause: "request".into(), request: Some("timer".into()), count: 3 };
        let classes = [(4096, 2), (1 << 30, 1)].map(|(below_us, wakes)| WakeClass { below_us, wakes });
        let stats = Stats {
            wakes: 3,
            wakes_us: 1_500_000,
            wakes_by: vec![by],
            wake_times: classes.to_vec(),
            unchanged_ms: 2500,
            ..Stats::default()
        };
        let usage = Some(ContainerUsage::default());
        Glance { state, is_further: false, is_silent: false, stats: Some(stats), reasons: None, usage }
    }

    #[test]
    fn a_vmm_may_say_anything() {
        let mut glance = glance();
        let evil = |cause: &str, count| CauseCount { cause: cause.into(), request: None, count };
        let stats = glance.stats.as_mut().unwrap();
        let (long, label) = ("x".repeat(100), "a\"} 1\nevil");
        stats.wakes_by = vec![evil("order", u64::MAX), evil("order", 1), evil(label, 1), evil(&long, 1)];
        stats.wakes_by.extend((0..1000).map(|number| evil(&format!("c{}", "x".repeat(number % 20)), 1)));
        stats.wake_times = [2, 4].map(|below_us| WakeClass { below_us, wakes: u64::MAX }).into();
        stats.memory.vmm_pss_bytes = u64::MAX;
        let other = OciState { id: "b".into(), ..glance.state.clone() };
        let page = page(&[glance.clone(), Glance { state: other, ..glance }]);
        let samples = page.lines().filter(|line| !line.starts_with('#'));
        let mut names: Vec<_> =
            samples.filter_map(|line| line.rsplit_once(' ')).map(|(name, _)| name).collect();
        assert!(!page.contains("evil") && names.len() < 300, "{page}");
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all, "a sample comes twice");
        let is_bucket = |line: &&str| line.starts_with("dormouse_sandbox_wake_seconds_bucket{id=\"b\"");
        let buckets = page.lines().filter(is_bucket).filter_map(|line| line.rsplit_once(' '));
        let counts: Vec<f64> = buckets.map(|(_, count)| count.parse().unwrap()).collect();
        assert!(counts.len() > 10 && counts.is_sorted(), "{counts:?}");
    }

    #[test]
    fn a_page_is_as_the_format_wants_it() {
        let page = page(&[glance()]);
        for line in [
            r#"dormouse_sandboxes{status="running",state="hibernated"} 1"#,
            r#"dormouse_sandbox_info{id="a\"b\\c",status="running",pod="ns/p\n",codec=""} 1"#,
            r#"dormouse_sandbox_state{id="a\"b\\c",state="hibernated"} 1"#,
            r#"dormouse_sandbox_state{id="a\"b\\c",state="warm"} 0"#,
            r#"dormouse_sandbox_unchanged_seconds{id="a\"b\\c"} 2.5"#,
            r#"dormouse_sandbox_wakes_total{id="a\"b\\c",cause="request",request="timer"} 3"#,
            r#"dormouse_sandbox_wake_seconds_bucket{id="a\"b\\c",le="0.002048"} 0"#,
            r#"dormouse_sandbox_wake_seconds_bucket{id="a\"b\\c",le="0.004096"} 2"#,
            r#"dormouse_sandbox_wake_seconds_bucket{id="a\"b\\c",le="+Inf"} 3"#,
            r#"dormouse_sandbox_wake_seconds_sum{id="a\"b\\c"} 1.5"#,
        ] {
            assert!(page.lines().any(|found| found == line), "no {line} in\n{page}");
        }
        // A family's lines stand together, below its help and its kind.
        let families: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("# HELP ")).collect();
        let samples = page.lines().filter(|line| !line.starts_with('#'));
        let mut order: Vec<_> =
            samples.map(|line| line.split(['{', ' ']).next().unwrap_or_default()).collect();
        order.iter_mut().for_each(|name| {
            *name =
                ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        });
        order.dedup();
        let names: Vec<_> = families.iter().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(order, names);
    }

    #[test]
    fn each_family_is_documented_and_every_sample_has_one() {
        let docs = include_str!("../../../docs/metrics.md");
        for (name, ..) in FAMILIES {
            assert!(docs.contains(&format!("`dormouse_{name}`")), "docs/metrics.md does not tell of {name}");
        }
        let known: Vec<_> = FAMILIES.iter().map(|(name, ..)| *name).collect();
        let mut samples = Samples::default();
        sandbox(&mut samples, &glance());
        container(&mut samples, &glance());
        samples.0.keys().for_each(|name| assert!(known.contains(name), "{name} is no family"));
    }
}
