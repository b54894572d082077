//! Scopes: the control groups that systemd makes for containers (`--systemd-cgroup`), on hosts with version 2.
//!
//! The crate `libcgroups` speaks to systemd: it starts a transient scope with `Delegate=yes`, and sets its properties. Around
//! it there is some care of our own:
//! - A scope needs a process from the start, and the VMM joins its group by a descriptor, like any other. So a *holder*
//!   stands in for it, a child of the command, until the VMM is there. It also does the talking: the crate does not close
//!   its connection, and ends the process where systemd answers what it does not expect. For the same reason [`Scope::update`]
//!   is for commands alone, and the shim runs one.
//! - A scope is stopped by `systemctl`, which is a process of its own, and only if it still is the one that was made: systemd
//!   gives each life of a unit an InvocationID, which is written down beside the name. Somebody else may have made a scope of
//!   that name since.
//! - systemd rounds some limits and knows others not at all. After it, they are written to the group's files, as runc does
//!   it, but for the processor's weight, for which systemd's own number counts.
//! - Of version 1 the crate has no scopes. There `--systemd-cgroup` is refused.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use libcgroups::common::{CgroupManager, ControllerOpt};
use libcgroups::systemd::manager::Manager;
use nix::unistd::Pid;
use serde_json::{Map, Value, json};
use vmm::process;

use super::error::CgroupError;
use super::hierarchy::own_group;
use super::limits::Limits;
use crate::resources::block_io::{Device, Rate, RateKind};

/// Slice of scopes whose `linux.cgroupsPath` names none.
const SLICE: &str = "system.slice";
/// How long systemd may take to make a scope.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a process may take to be in its scope once systemd has said so.
const ARRIVAL: Duration = Duration::from_secs(5);

/// Between name and InvocationID in a list of groups; no name has it.
const OF_LIFE: char = '#';

/// A scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scope {
    /// In the form of `linux.cgroupsPath`: `slice:prefix:name`.
    name: String,
    /// Its InvocationID, once it was made.
    life: Option<String>,
}

/// A process that is in a scope until the VMM is.
#[derive(Debug)]
pub struct Holder {
    pid: i32,
    /// Closed to end it.
    channel: Option<UnixStream>,
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.channel.take());
        process::reap(self.pid);
    }
}

impl Scope {
    /// The scope of a container: by its `linux.cgroupsPath`, or one of its own.
    pub(super) fn of(path: Option<&Path>, id: &str) -> Result<Self, CgroupError> {
        let named = |name: String| Self { name, life: None };
        let Some(path) = path else { return Ok(named(format!("{SLICE}:dormouse:{id}"))) };
        let wrong = || CgroupError::ScopePath { path: path.to_owned() };
        let text = path.to_str().ok_or_else(wrong)?;
        let parts: Vec<&str> = text.split(':').collect();
        let [slice, prefix, name] = parts[..] else { return Err(wrong()) };
        let slice = if slice.is_empty() { SLICE } else { slice };
        // A slice holds no processes, and a name is no path.
        if prefix.is_empty()
            || name.is_empty()
            || name.ends_with(".slice")
            || !text.chars().all(|c| c.is_ascii_alphanumeric() || ":_.-\\".contains(c))
            || prefix.starts_with('-')
            || !slice.ends_with(".slice")
        {
            return Err(wrong());
        }
        Ok(named(format!("{slice}:{prefix}:{name}")))
    }

    /// The scope that stands in a list of groups, where it has no path but its name.
    pub(super) fn listed(entry: &Path) -> Option<Self> {
        let entry = entry.to_str().filter(|entry| !entry.starts_with('/'))?;
        let (name, life) = match entry.split_once(OF_LIFE) {
            Some((name, life)) => (name, Some(life.to_owned())),
            None => (entry, None),
        };
        Some(Self { name: name.to_owned(), life })
    }

    /// The entry for this scope in a list of groups, which [`Scope::listed`] reads.
    pub(super) fn entry(&self) -> PathBuf {
        let life = self.life.iter().map(|life| format!("{OF_LIFE}{life}"));
        PathBuf::from(self.name.clone() + &life.collect::<String>())
    }

    /// Makes the scope, with the limits that systemd knows. Result: its group's path in the hierarchy, and the process
    /// that is in it.
    pub(super) fn start(
        &mut self,
        mount: &Path,
        id: &str,
        limits: &Limits<'_>,
    ) -> Result<(PathBuf, Holder), CgroupError> {
        if !libcgroups::systemd::booted() {
            return Err(self.failed("systemd does not run on this host"));
        }
        let (ours, theirs) = UnixStream::pair().map_err(|error| self.failed(error))?;
        let parent = process::id();
        let Some(pid) = process::fork().map_err(|error| self.failed(error))? else {
            drop(ours);
            hold(self, mount, id, limits, theirs, parent)
        };
        drop(theirs);
        let holder = Holder { pid, channel: Some(ours) };
        let answer = holder.answer().map_err(|error| self.failed(error))?;
        let mut words = answer.splitn(3, ' ');
        match (words.next(), words.next(), words.next()) {
            (Some("group"), Some(life), Some(path)) => {
                self.life = Some(life.to_owned());
                Ok((PathBuf::from(path.trim_start_matches('/')), holder))
            }
            (Some("failed"), _, _) => Err(self.failed(answer.trim_start_matches("failed "))),
            _ => Err(self.failed("the process that asked systemd for it ended without a word")),
        }
    }

    /// Changes the limits that systemd knows.
    pub(super) fn update(&self, mount: &Path, limits: &Limits<'_>) -> Result<(), CgroupError> {
        let manager = self.manager(mount, "").map_err(|error| self.failed(error))?;
        apply(&manager, limits).map_err(|error| self.failed(error))
    }

    /// Stops the scope. One that has gone is no error: systemd removes a scope by itself once it is empty. Result: false:
    /// another one has its name by now, and its group, too.
    pub(super) fn stop(&self) -> bool {
        if !libcgroups::systemd::booted() {
            return true;
        }
        let Some(now) = self.life_now() else { return true };
        if self.life.as_ref() != Some(&now) {
            return false;
        }
        let _ = self.systemctl(&["stop", "--no-block"]).status();
        // One that failed, as when systemd had to kill its processes, would stay known.
        let _ = self.systemctl(&["reset-failed"]).status();
        true
    }

    /// The InvocationID of the unit of this name; `None`: there is none, or it has not been started.
    fn life_now(&self) -> Option<String> {
        let shown =
            self.systemctl(&["show", "--property=InvocationID", "--value"]).stdout(Stdio::piped()).output();
        let life = String::from_utf8(shown.ok()?.stdout).ok()?.trim().to_owned();
        let is_one = life.len() == 32 && life.bytes().all(|byte| byte.is_ascii_hexdigit());
        (is_one && life.bytes().any(|byte| byte != b'0')).then_some(life)
    }

    /// A command of systemd's about the scope's unit.
    fn systemctl(&self, words: &[&str]) -> Command {
        let mut parts = self.name.split(':').skip(1);
        let (prefix, name) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let mut command = Command::new("systemctl");
        command.arg("--quiet").args(words).args(["--", &format!("{prefix}-{name}.scope")]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn manager(&self, mount: &Path, id: &str) -> Result<Manager, String> {
        let is_root = process::effective_user() == 0;
        // The crate puts "youki container" in front.
        let description = format!("{id} of Dormouse");
        Manager::new(mount.to_owned(), PathBuf::from(&self.name), description, is_root, ARRIVAL)
            .map_err(|error| error.to_string())
    }

    fn failed(&self, why: impl ToString) -> CgroupError {
        CgroupError::Scope { name: self.name.clone(), why: why.to_string() }
    }
}

impl Holder {
    /// The line that it says once the scope is there.
    fn answer(&self) -> std::io::Result<String> {
        let Some(channel) = &self.channel else { return Ok(String::new()) };
        channel.set_read_timeout(Some(PATIENCE))?;
        let mut line = String::new();
        BufReader::new(channel).read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }
}

/// The holder: makes the scope around itself, says so, and waits until the other end is closed.
fn hold(
    scope: &Scope,
    mount: &Path,
    id: &str,
    limits: &Limits<'_>,
    mut channel: UnixStream,
    parent: i32,
) -> ! {
    process::set_name(c"dormouse-scope");
    if !process::die_with_parent(parent) {
        process::exit_now(1);
    }
    let made = scope.manager(mount, id).and_then(|manager| {
        if manager.get_all_pids().is_ok_and(|pids| !pids.is_empty()) {
            return Err("it is there already, with processes in it".into());
        }
        enter(&manager)?;
        apply(&manager, limits).inspect_err(|_| drop(manager.remove()))?;
        let groups = std::fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let group = own_group(&groups, "").ok_or("it has no control group")?;
        let life = scope.life_now().ok_or("systemctl does not tell its InvocationID")?;
        Ok(format!("{life} {group}"))
    });
    let line = match made {
        Ok(made) => format!("group {made}\n"),
        Err(why) => format!("failed {}\n", why.replace('\n', " ")),
    };
    let _ = channel.write_all(line.as_bytes());
    let _ = channel.read(&mut [0]);
    process::exit_now(0)
}

fn enter(manager: &Manager) -> Result<(), String> {
    manager.add_task(Pid::from_raw(process::id())).map_err(|error| error.to_string())
}

fn apply(manager: &Manager, limits: &Limits<'_>) -> Result<(), String> {
    // The crate has another version of the specification's types.
    let resources = serde_json::from_value(in_json(limits)).map_err(|error| error.to_string())?;
    let options = ControllerOpt {
        resources: &resources,
        disable_oom_killer: false,
        oom_score_adj: None,
        freezer_state: None,
    };
    manager.apply(&options).map_err(|error| error.to_string())
}

/// The limits as `linux.resources` has them, with headroom for the VMM. What is not limited is said as well: systemd has a
/// limit of tasks of its own for scopes, and a limit may have gone.
fn in_json(limits: &Limits<'_>) -> Value {
    let (resources, cpu) = (limits.resources, &limits.resources.cpu);
    let mut memory = Map::new();
    memory.insert("limit".into(), limits.memory().map_or(json!(-1), Value::from));
    if let (Some(both), Some(limit), Some(group)) =
        (resources.memory_and_swap, resources.memory, limits.memory())
    {
        // The difference is what may be swapped, of the container alone.
        let swap = both.map_or(json!(-1), |both| json!(group.saturating_add(both.saturating_sub(limit))));
        memory.insert("swap".into(), swap);
    }
    if let Some(bytes) = resources.reservation {
        memory.insert("reservation".into(), json!(bytes));
    }
    let mut cpus = Map::new();
    let members = [
        ("shares", cpu.shares.map(Value::from)),
        ("quota", cpu.quota.map(Value::from)),
        ("period", cpu.period.map(Value::from)),
        ("cpus", cpu.cpus.clone().map(Value::from)),
        ("mems", cpu.mems.clone().map(Value::from)),
    ];
    cpus.extend(members.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    let rates = |kind: RateKind| -> Vec<Value> {
        let of_kind = resources.block_io.rates.iter().filter(|rate| rate.kind == kind && rate.most > 0);
        let value = |rate: &Rate| {
            let Device { major, minor } = rate.device;
            json!({"major": major, "minor": minor, "rate": rate.most})
        };
        of_kind.map(value).collect()
    };
    json!({
        "memory": memory,
        "cpu": cpus,
        "pids": {"limit": limits.tasks().map_or(json!(-1), Value::from)},
        "blockIO": {
            "throttleReadBpsDevice": rates(RateKind::ReadBytes),
            "throttleWriteBpsDevice": rates(RateKind::WriteBytes),
            "throttleReadIOPSDevice": rates(RateKind::Reads),
            "throttleWriteIOPSDevice": rates(RateKind::Writes),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::{Cpu, Resources};

    #[test]
    fn a_scope_has_three_parts() {
        let of = |path: &str| Scope::of(Some(Path::new(path)), "x");
        for (path, scope) in [
            ("system.slice:docker:1", "system.slice:docker:1"),
            (":docker:1", "system.slice:docker:1"),
            ("-.slice:cri-containerd:1", "-.slice:cri-containerd:1"),
            (
                "kubepods-burstable-pod1.slice:cri-containerd:1",
                "kubepods-burstable-pod1.slice:cri-containerd:1",
            ),
        ] {
            let scope = Scope { name: scope.into(), life: None };
            assert_eq!(of(path).unwrap(), scope);
            for life in [None, Some("0123abcd".to_owned())] {
                let scope = Scope { life, ..scope.clone() };
                assert_eq!(Scope::listed(&scope.entry()), Some(scope));
            }
        }
        for path in [
            "/docker/1",
            "a:b",
            "a:b:c",
            "a.slice:b:c/d",
            "a.slice:b:",
            "a.slice::c",
            "a.slice:b:c.slice",
            "a.slice:b:c:d",
        ] {
            let error = of(path).unwrap_err().to_string();
            assert!(error.contains("slice:prefix:name") && error.contains(path), "{error}");
        }
        assert_eq!(Scope::of(None, "x").unwrap().name, "system.slice:dormouse:x");
        assert_eq!(Scope::listed(Path::new("a.slice:b:c#12")).unwrap().name, "a.slice:b:c");
        assert_eq!(Scope::listed(Path::new("/sys/fs/cgroup/a.scope")), None);
    }

    #[test]
    fn the_crate_understands_the_limits() {
        let cpu = Cpu { shares: Some(512), quota: Some(50_000), cpus: Some("0-1".into()), ..Cpu::default() };
        let (memory, memory_and_swap) = (Some(64 << 20), Some(Some(96 << 20)));
        let resources = Resources { memory, memory_and_swap, pids: Some(10), cpu, ..Resources::default() };
        let limits = Limits { resources: &resources, memory_bytes: 64 << 20, cpus: 1 };
        let value = in_json(&limits);
        let parsed: oci_spec::runtime::LinuxResources = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(parsed.memory().as_ref().and_then(|memory| memory.limit()), Some(194 << 20));
        assert_eq!(parsed.memory().as_ref().and_then(|memory| memory.swap()), Some((194 + 32) << 20));
        assert_eq!(parsed.cpu().as_ref().and_then(|cpu| cpu.quota()), Some(50_000));
        assert_eq!(parsed.pids().as_ref().map(|pids| pids.limit()), Some(10 * 3 + 128));
        let none = Resources::default();
        let value = in_json(&Limits { resources: &none, ..limits });
        assert_eq!((&value["memory"], &value["pids"]), (&json!({"limit": -1}), &json!({"limit": -1})));
    }
}
