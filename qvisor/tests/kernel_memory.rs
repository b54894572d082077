//! Programs that make the kernel keep as much for them as it will: the amount is bounded, no other program pays, and a
//! sandbox that is full can still be looked into, put to sleep, woken and ended.

mod sleeper;

use std::fs;

use sleeper::{TestSandbox, guest, next_line};

/// The sandbox's memory, and the most that the host keeps for it beside that, in MiB (`Resources::with_headroom`).
const MEMORY: &str = "64M";
const MOST_MIB: u64 = 64 + 128;

/// Starts a sandbox in which one attack has got as far as it gets: it still holds its memory, or was killed.
fn attacked(what: &str) -> TestSandbox {
    let mut sandbox = TestSandbox::new();
    let program = guest("kernelmem");
    let script = "echo ready; mkdir /dev/shm/w; \"$0\" \"$1\" /dev/shm/w || echo full \"$1\"; exec cat";
    let program = ["/bin/sh", "-c", script, program.to_str().unwrap(), what];
    sandbox.start(&["--memory", MEMORY], &[], &program);
    assert_eq!(next_line(sandbox.front.as_mut().unwrap()), format!("full {what}\n"));
    sandbox
}

/// Host memory of all processes of the sandbox, with the page tables that the host keeps for them.
fn host_mib(sandbox: &TestSandbox) -> u64 {
    let tables = |pid: &u32| -> u64 {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmPTE:")).unwrap_or("0 kB");
        line.trim().trim_end_matches(" kB").parse().unwrap()
    };
    (sandbox.memory_kib() + sandbox.processes().iter().map(tables).sum::<u64>()) / 1024
}

fn runs_a_program(sandbox: &TestSandbox) {
    let output = sandbox.run(&["exec", "s", "/bin/true"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

fn is_bounded(what: &str) {
    let mut sandbox = attacked(what);
    let used = host_mib(&sandbox);
    assert!(used <= MOST_MIB, "{what}: {used} MiB");
    runs_a_program(&sandbox);
    sandbox.order(&["hibernate"]);
    sandbox.order(&["wake"]);
    runs_a_program(&sandbox);
    sandbox.kill("KILL");
    let (code, ..) = sandbox.end();
    assert_eq!(code, Some(137));
}

/// A test for each attack.
macro_rules! bounded {
    ($($test:ident: $what:literal,)*) => {
        $(#[test]
        fn $test() {
            is_bounded($what);
        })*
    };
}

bounded! {
    lists_of_poll_are_bounded: "polls",
    page_tables_at_small_strides_are_bounded: "tables-2m",
    page_tables_at_large_strides_are_bounded: "tables-1g",
    page_tables_of_several_processes_are_bounded: "tables-sparse",
    mappings_are_bounded: "mappings",
    full_pipes_are_bounded: "pipes",
    empty_pipes_are_bounded: "empty-pipes",
    sockets_are_bounded: "sockets",
    empty_datagrams_are_bounded: "datagrams",
    watched_files_are_bounded: "epolls",
    locks_are_bounded: "locks",
    files_in_memory_are_bounded: "files",
    nested_directories_are_bounded: "directories",
    extended_attributes_are_bounded: "attributes",
    absent_names_are_bounded: "absent",
    timers_are_bounded: "timers",
    queued_signals_are_bounded: "signals",
    threads_are_bounded: "threads",
    arguments_are_bounded: "arguments",
    descriptors_on_their_way_are_bounded: "rights",
    texts_of_proc_are_bounded: "texts",
    mounts_are_bounded: "mounts",
}

/// The first process has no sisters; to ask for one costs nothing.
#[test]
fn refused_clones_leave_nothing() {
    let sandbox = TestSandbox::new();
    let forks = guest("forks");
    let output =
        sandbox.run(&["do", "--memory", MEMORY, forks.to_str().unwrap(), "--no-fork", "refused_sisters"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"ok forks\n"[..]), "{said}");
}

/// The process that holds most is killed, not the one that asks last. It takes memory by page faults alone: a call may be refused
/// instead.
#[test]
fn the_largest_process_is_killed() {
    let mut sandbox = TestSandbox::new();
    let (kernelmem, hungry) = (guest("kernelmem"), guest("hungry"));
    let script = "echo ready; sleep 1000 & \"$0\" 48 2>/dev/null; echo \"alone $?\"; \
                  \"$1\" tables-touched 2>/dev/null || echo gone; kill %1 && echo here; exec cat";
    let program = ["/bin/bash", "-c", script, hungry.to_str().unwrap(), kernelmem.to_str().unwrap()];
    sandbox.start(&["--memory", MEMORY], &[], &program);
    let front = sandbox.front.as_mut().unwrap();
    let said: Vec<String> = (0..3).map(|_| next_line(front)).collect();
    assert_eq!(said, ["ok hungry\n", "alone 0\n", "gone\n"]);
    assert_eq!(next_line(front), "here\n");
}
