//! How many cores may unpack: those that are idle now, and no more than a quota allows.

use std::path::Path;
use std::time::Duration;
use std::{fs, thread};

use runtime::cgroup::files::Group;
use runtime::cgroup::groups_of;
use serde::Serialize;

/// How long the host is watched.
const WATCHED: Duration = Duration::from_millis(400);

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cores {
    pub online: f64,
    pub idle: f64,
    /// The processors that the control groups of the sandbox, or else the caller's, allow; `None`: all.
    pub quota: Option<f64>,
}

impl Cores {
    /// Looks at the host for a moment. `pid`: whose quota counts.
    pub fn watch(pid: i32) -> Self {
        let look = || fs::read_to_string("/proc/stat").unwrap_or_default();
        let before = look();
        thread::sleep(WATCHED);
        let (online, idle) = idle(&before, &look());
        let groups = groups_of(pid);
        let quota =
            groups.iter().flat_map(|group| group.ancestors()).filter_map(quota).min_by(f64::total_cmp);
        Self { online, idle, quota }
    }

    pub fn usable(&self) -> f64 {
        self.quota.map_or(self.idle, |quota| quota.min(self.idle))
    }
}

/// How many processors there are, and how many of them were idle between two looks at `/proc/stat`.
#[expect(clippy::cast_precision_loss, reason = "for people")]
fn idle(before: &str, after: &str) -> (f64, f64) {
    // user, nice, system, idle, iowait, irq, softirq, steal; guests' time is in the first two.
    let times = |text: &str| -> Vec<u64> {
        let line = text.lines().find(|line| line.starts_with("cpu ")).unwrap_or_default();
        line.split_whitespace().skip(1).take(8).filter_map(|word| word.parse().ok()).collect()
    };
    let spent: Vec<u64> =
        times(before).iter().zip(times(after)).map(|(before, after)| after.saturating_sub(*before)).collect();
    let is_processor = |line: &&str| {
        line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let online = after.lines().filter(is_processor).count() as f64;
    let all: u64 = spent.iter().sum();
    let free: u64 = spent.iter().skip(3).take(2).sum();
    (online, online * free as f64 / all.max(1) as f64)
}

/// The processors that a control group may use, by either version; `None`: it has no quota, or is none.
#[expect(clippy::cast_precision_loss, reason = "for people")]
fn quota(group: &Path) -> Option<f64> {
    let group = Group(group);
    let of_two = group.text("cpu.max");
    let (quota, period) = match of_two.trim().split_once(' ') {
        Some((quota, period)) => (quota.parse().ok()?, period.parse().ok()?),
        None => (group.limit("cpu.cfs_quota_us")?, group.limit("cpu.cfs_period_us")?),
    };
    (period > 0).then(|| quota as f64 / period as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_that_between_two_looks() {
        let before = "cpu  100 0 100 1000 0 0 0 0 0 0\ncpu0 1\ncpu1 1\nintr 5\n";
        let after = "cpu  150 0 100 1100 50 0 0 0 0 0\ncpu0 1\ncpu1 1\nintr 5\n";
        assert_eq!(idle(before, after), (2.0, 1.5));
        assert_eq!(idle(before, before), (2.0, 0.0));
        assert_eq!(idle("", ""), (0.0, 0.0));
    }

    #[test]
    fn quotas_of_both_versions_are_read() {
        let dir = testdir::TempDir::new();
        let path = dir.path();
        assert_eq!(quota(path), None);
        fs::write(path.join("cpu.cfs_quota_us"), "-1\n").unwrap();
        fs::write(path.join("cpu.cfs_period_us"), "100000\n").unwrap();
        assert_eq!(quota(path), None);
        fs::write(path.join("cpu.cfs_quota_us"), "50000\n").unwrap();
        assert_eq!(quota(path), Some(0.5));
        for (text, expected) in [("max 100000\n", None), ("250000 100000\n", Some(2.5)), ("1 0\n", None)] {
            fs::write(path.join("cpu.max"), text).unwrap();
            assert_eq!(quota(path), expected);
        }
    }

    #[test]
    fn no_more_is_used_than_there_is() {
        let cores = Cores::watch(0);
        assert!(cores.online >= 1.0 && cores.idle >= 0.0 && cores.idle <= cores.online, "{cores:?}");
        assert_eq!(Cores { online: 4.0, idle: 3.0, quota: Some(0.5) }.usable(), 0.5);
        assert_eq!(Cores { online: 4.0, idle: 3.0, quota: None }.usable(), 3.0);
    }
}
