//! `/proc/sys`. Most values are fixed: those that this kernel has, or Linux's defaults.

mod inotify;
mod ipc;
mod keys;
mod net;
mod vm;

use alloc::format;
use alloc::string::String;
use core::sync::atomic::Ordering;

use crate::config::{KERNEL_RELEASE, NR_OPEN, TASKS_MAX, VMAS_MAX};
use crate::creds::CAP_SYS_ADMIN;
use crate::fs::mount::MOUNTS_MAX;
use crate::proc::Whole;
use crate::proc::system::KERNEL_VERSION;
use crate::pseudo::{Entry, Out, parse_number};
use crate::task;
use crate::task::container;
use crate::task::tree::PID_MAX;
use machine::errno::{Errno, Result};
use machine::host_fact::HostFact;

/// Longest host or domain name.
pub const UTS_NAME_MAX: usize = 64;

const fn value(name: &'static str, text: &'static str) -> Entry<Whole> {
    Entry::fixed(name, text).mode(0o644)
}

/// The directory.
pub static TABLE: &[Entry<Whole>] = &[
    Entry::dir("abi", &[]),
    Entry::dir("debug", &[]),
    Entry::dir("dev", &[]),
    Entry::dir("fs", FS),
    Entry::dir("kernel", KERNEL),
    Entry::dir("net", net::Settings::<Whole>::TABLE),
    Entry::dir("user", USER),
    Entry::dir("vm", VM),
];

static KERNEL: &[Entry<Whole>] = &[
    value("arch", "x86_64\n").mode(0o444),
    value("cap_last_cap", "40\n").mode(0o444),
    value("core_pattern", "core\n"),
    value("core_uses_pid", "0\n"),
    value("dmesg_restrict", "1\n"),
    Entry::setting("domainname", show_domain, store_domain),
    Entry::setting("hostname", show_host, store_host),
    value("io_uring_disabled", "2\n"),
    Entry::dir("keys", keys::Settings::TABLE),
    value("kptr_restrict", "1\n"),
    ipc::Settings::MSG_NEXT_ID,
    ipc::Settings::MSGMAX,
    ipc::Settings::MSGMNB,
    ipc::Settings::MSGMNI,
    value("ngroups_max", "65536\n").mode(0o444),
    value("numa_balancing", "0\n"),
    Entry::text("osrelease", |_, out| line(out, KERNEL_RELEASE)),
    value("ostype", "Linux\n").mode(0o444),
    value("overflowgid", "65534\n"),
    value("overflowuid", "65534\n"),
    value("panic", "0\n"),
    value("panic_on_oops", "1\n"),
    value("perf_event_max_sample_rate", "100000\n"),
    value("perf_event_paranoid", "4\n"),
    Entry::text("pid_max", |_, out| line(out, &format!("{PID_MAX}"))).mode(0o644),
    value("printk", "4\t4\t1\t7\n"),
    Entry::dir("pty", &[value("max", "4096\n"), value("nr", "0\n").mode(0o444), value("reserve", "1024\n")]),
    Entry::dir("random", RANDOM),
    value("randomize_va_space", "2\n"),
    value("sched_autogroup_enabled", "0\n"),
    value("sched_rr_timeslice_ms", "100\n"),
    value("sched_rt_period_us", "1000000\n"),
    value("sched_rt_runtime_us", "950000\n"),
    Entry::dir("seccomp", SECCOMP),
    ipc::Settings::SEM,
    ipc::Settings::SEM_NEXT_ID,
    ipc::Settings::SHM_NEXT_ID,
    ipc::Settings::SHM_RMID_FORCED,
    ipc::Settings::SHMALL,
    ipc::Settings::SHMMAX,
    ipc::Settings::SHMMNI,
    value("tainted", "0\n"),
    Entry::text("threads-max", |_, out| line(out, &format!("{TASKS_MAX}"))).mode(0o644),
    value("unprivileged_bpf_disabled", "2\n"),
    Entry::text("version", |_, out| line(out, KERNEL_VERSION)),
    Entry::dir("yama", &[value("ptrace_scope", "0\n")]),
];

/// The actions that filters of system calls can take, and those that are logged (`seccomp(2)`).
static SECCOMP: &[Entry<Whole>] = &[
    value("actions_avail", "kill_process kill_thread trap errno trace log allow\n").mode(0o444),
    value("actions_logged", "kill_process kill_thread log\n"),
];

/// Drawn once under each VMM.
static BOOT_ID: HostFact<String> = HostFact::unknown();

/// Another VMM is another boot.
pub fn forget_boot_id() {
    BOOT_ID.forget();
}

static RANDOM: &[Entry<Whole>] = &[
    Entry::text("boot_id", |_, out| line(out, &BOOT_ID.learn(new_uuid))),
    value("entropy_avail", "256\n").mode(0o444),
    value("poolsize", "256\n").mode(0o444),
    value("urandom_min_reseed_secs", "60\n"),
    Entry::text("uuid", |_, out| line(out, &new_uuid())),
    value("write_wakeup_threshold", "256\n"),
];

static VM: &[Entry<Whole>] = &[
    value("compact_memory", "").mode(0o200),
    value("dirty_background_bytes", "0\n"),
    value("dirty_background_ratio", "10\n"),
    value("dirty_bytes", "0\n"),
    value("dirty_expire_centisecs", "3000\n"),
    value("dirty_ratio", "20\n"),
    value("dirty_writeback_centisecs", "500\n"),
    value("drop_caches", "0\n").mode(0o200),
    value("hugetlb_shm_group", "0\n"),
    value("laptop_mode", "0\n"),
    value("legacy_va_layout", "0\n"),
    Entry::text("max_map_count", |_, out| line(out, &format!("{VMAS_MAX}"))).mode(0o644),
    value("memfd_noexec", "0\n"),
    value("min_free_kbytes", "4096\n"),
    Entry::text("mmap_min_addr", |_, out| line(out, &format!("{}", abi::layout::USER_MIN))).mode(0o644),
    value("nr_hugepages", "0\n"),
    value("nr_overcommit_hugepages", "0\n"),
    value("oom_kill_allocating_task", "0\n"),
    vm::Settings::KBYTES,
    vm::Settings::MEMORY,
    vm::Settings::RATIO,
    value("page-cluster", "3\n"),
    value("panic_on_oom", "0\n"),
    value("swappiness", "60\n"),
    value("unprivileged_userfaultfd", "0\n"),
    value("vfs_cache_pressure", "100\n"),
    value("zone_reclaim_mode", "0\n"),
];

static FS: &[Entry<Whole>] = &[
    value("aio-max-nr", "65536\n"),
    value("aio-nr", "0\n").mode(0o444),
    Entry::dir("binfmt_misc", &[]),
    value("dentry-state", "0\t0\t45\t0\t0\t0\n").mode(0o444),
    Entry::dir("epoll", &[value("max_user_watches", "1048576\n")]),
    value("file-max", "9223372036854775807\n"),
    value("file-nr", "0\t0\t9223372036854775807\n").mode(0o444),
    value("inode-nr", "0\t0\n").mode(0o444),
    value("inode-state", "0\t0\t0\t0\t0\t0\t0\n").mode(0o444),
    Entry::dir("inotify", inotify::Settings::TABLE),
    Entry::setting("lease-break-time", show_lease_time, store_lease_time),
    value("leases-enable", "1\n"),
    Entry::text("mount-max", |_, out| line(out, &format!("{MOUNTS_MAX}"))).mode(0o644),
    Entry::dir("mqueue", ipc::Settings::MQUEUE),
    Entry::text("nr_open", |_, out| line(out, &format!("{NR_OPEN}"))).mode(0o644),
    value("overflowgid", "65534\n"),
    value("overflowuid", "65534\n"),
    value("pipe-max-size", "1048576\n"),
    value("pipe-user-pages-hard", "0\n"),
    value("pipe-user-pages-soft", "16384\n"),
    value("protected_fifos", "1\n"),
    value("protected_hardlinks", "1\n"),
    value("protected_regular", "1\n"),
    value("protected_symlinks", "1\n"),
    value("suid_dumpable", "0\n"),
];

/// New namespaces are not to be had.
static USER: &[Entry<Whole>] = &[
    value("max_cgroup_namespaces", "0\n"),
    value("max_inotify_instances", "128\n"),
    value("max_inotify_watches", "65536\n"),
    value("max_ipc_namespaces", "0\n"),
    value("max_mnt_namespaces", "0\n"),
    value("max_net_namespaces", "0\n"),
    value("max_pid_namespaces", "0\n"),
    value("max_time_namespaces", "0\n"),
    value("max_user_namespaces", "0\n"),
    value("max_uts_namespaces", "0\n"),
];

fn line(out: &mut Out, text: &str) -> Result<()> {
    writeln!(out, "{text}");
    Ok(())
}

/// A random UUID (RFC 9562, version 4).
fn new_uuid() -> String {
    let mut bytes = [0u8; 16];
    machine::random::fill(&mut bytes);
    uuid_of(bytes)
}

fn uuid_of(mut bytes: [u8; 16]) -> String {
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let mut text = String::new();
    for (i, byte) in bytes.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

fn show_lease_time(_: &Whole, out: &mut Out) -> Result<()> {
    line(out, &format!("{}", container::current().lease_break_seconds.load(Ordering::Relaxed)))
}

fn store_lease_time(_: &Whole, bytes: &[u8]) -> Result<()> {
    let seconds = i32::try_from(parse_number(bytes)?).map_err(|_| Errno::EINVAL)?;
    container::current().lease_break_seconds.store(seconds, Ordering::Relaxed);
    Ok(())
}

fn show_domain(_: &Whole, out: &mut Out) -> Result<()> {
    out.push(&container::current().domain_name());
    out.push(b"\n");
    Ok(())
}

fn show_host(_: &Whole, out: &mut Out) -> Result<()> {
    out.push(&container::current().host_name());
    out.push(b"\n");
    Ok(())
}

/// The name that was written: up to a line's end, and cut to the longest length allowed.
fn written_name(bytes: &[u8]) -> Result<&[u8]> {
    if !task::current().creds.get().has(CAP_SYS_ADMIN) {
        return Err(Errno::EPERM);
    }
    let end = bytes.iter().position(|byte| matches!(byte, b'\n' | 0)).unwrap_or(bytes.len());
    Ok(&bytes[..end.min(UTS_NAME_MAX)])
}

fn store_host(_: &Whole, bytes: &[u8]) -> Result<()> {
    container::current().set_host_name(written_name(bytes)?.to_vec());
    Ok(())
}

fn store_domain(_: &Whole, bytes: &[u8]) -> Result<()> {
    container::current().set_domain_name(written_name(bytes)?.to_vec());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_say_their_version() {
        assert_eq!(uuid_of([0xff; 16]), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(uuid_of([0; 16]), "00000000-0000-4000-8000-000000000000");
    }
}
