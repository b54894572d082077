//! Options of how a sandbox hibernates.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use runtime::units::{parse_home, parse_percent, parse_size, parse_time, parse_timers};
use vmm::hibernate::{Codec, HomePolicy, Ignored, Timers, Wishes};

use crate::choices::{ExecProbeChoice, OutboundChoice, ReapChoice, Switch};

/// How a sandbox hibernates. Annotations of a bundle and the node's configuration stand in for what is not given.
#[derive(Debug, Args)]
pub struct HibernationArgs {
    /// Directory for the memory of the sandbox while it hibernates [default: /var/lib/dormouse/.swap, or ~/.local/state/dormouse/.swap of users other than root]
    #[arg(long, value_name = "DIR")]
    pub swap_dir: Option<PathBuf>,
    /// Most bytes there, as 512M or 2G [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub swap_limit: Option<u64>,
    /// How the working set comes back when the sandbox wakes [default: on]
    #[arg(long, value_enum)]
    pub reap: Option<ReapChoice>,
    /// How the memory is packed on the disk: none, lz4, zstd[:LEVEL], deflate-fixed, deflate-dynamic, deflate-canned, iaa (by an accelerator) or auto [default: auto]
    #[arg(long, value_name = "CODEC")]
    pub codec: Option<Codec>,
    /// Pack it after this long asleep, as 30s or 5m [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub settle: Option<Duration>,
    /// Where the memory is meanwhile: disk, memory (packed, and kept as a difference from the snapshot that the sandbox began with if that is
    /// held), or memory,disk:TIME (on the disk after this long asleep) [default: disk]
    #[arg(long, value_name = "disk|memory[,disk:TIME]", value_parser = parse_home)]
    pub home: Option<HomePolicy>,
    /// Name of a snapshot that is held (snapshot hold): memory is kept as a difference from it [default: the one that the sandbox began with]
    #[arg(long, value_name = "NAME")]
    pub base: Option<String>,
    /// From memory to the disk while tasks of the host wait for memory for this part of their time, in per cent [default: never]
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    pub memory_pressure: Option<u8>,
    /// Encrypt it with a key that ends with the sandbox [default: off]
    #[arg(long, value_enum)]
    pub encrypt: Option<Switch>,
    /// Hibernate after this long without a request, as 30s or 5m [default: never]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub idle_timeout: Option<Duration>,
    /// Who comes from these addresses does not count as a request: addresses and prefixes with commas between [default: none]
    #[arg(long, value_name = "ADDRESSES")]
    pub idle_ignores: Option<Ignored>,
    /// Beyond that time stay awake for no longer than this for what may be a request [default: 15m]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub awake_at_most: Option<Duration>,
    /// While the sandbox waits, with a time-out, for the answer to what it asked somebody [default: awake]
    #[arg(long, value_enum)]
    pub outbound: Option<OutboundChoice>,
    /// The answer to a probe by a command that finds the sandbox hibernated [default: wake]
    #[arg(long, value_enum)]
    pub exec_probe: Option<ExecProbeChoice>,
    /// The effect of programs' timers while the sandbox hibernates: nothing (sleep), or one that was set at least TIME ahead wakes it
    /// (wake[:TIME], 30s if not given), at multiples of TIME if it may be late (coalesce:TIME) [default: sleep]
    #[arg(long, value_name = "sleep|wake[:TIME]|coalesce:TIME", value_parser = parse_timers)]
    pub timers: Option<Timers>,
}

impl HibernationArgs {
    /// The wishes that the options express.
    pub fn wishes(&self) -> std::io::Result<Wishes> {
        Ok(Wishes {
            dir: self.swap_dir.as_ref().map(std::path::absolute).transpose()?,
            limit_bytes: self.swap_limit,
            reap: self.reap.map(Into::into),
            codec: self.codec,
            settle: self.settle,
            home: self.home,
            base: self.base.clone(),
            pressure: self.memory_pressure,
            encrypt: self.encrypt.map(|switch| switch == Switch::On),
            idle_timeout: self.idle_timeout,
            idle_ignores: self.idle_ignores.clone(),
            awake_at_most: self.awake_at_most,
            outbound: self.outbound.map(Into::into),
            exec_probe: self.exec_probe.map(Into::into),
            timers: self.timers,
        })
    }
}
