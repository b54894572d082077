//! Bundles from outside: every behaviour that is Linux's is also asked of `runc`, where it is installed.
//!
//! They need root (namespaces, mounts, control groups), and are skipped without. Those marked `#[serial(mounts)]` come one by one:
//! runc's tests of mounts and hooks disturb one another less so on a busy host.

mod bad;
mod cgroup_view;
mod cgroups;
mod checkpoint;
mod exec;
mod handed_in;
mod hibernate;
mod hooks;
mod leash;
mod lifecycle;
mod mounts;
mod network;
mod pause;
mod pods;
mod pods_at_rest;
mod pods_attacked;
mod pods_cpu;
mod pods_memory;
mod pods_time;
mod pods_volumes;
mod probes;
mod process;
#[path = "../random/mod.rs"]
mod random;
mod resources;
mod seccomp;
mod settings;
mod snapshot;
mod stop_cont;
mod sysctl;
mod timers;
mod update;
mod users;
mod words;
mod world;
