//! `dormouse update`.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use oci_spec::runtime::LinuxResources;
use runtime::orders;
use runtime::state::{Id, Root};
use runtime::units::parse_size;
use serde_json::{Map, Value, json};

use crate::failure::{Failure, remark};

/// More bytes are no description of limits.
const RESOURCES_MAX: u64 = 1 << 20;

/// The arguments of `update`, as runc takes them. A limit that is not given stays.
#[derive(Debug, Args)]
pub struct UpdateArgs {
    pub id: String,
    /// File with limits in the form of `linux.resources` of a bundle; `-`: standard input
    #[arg(long, short, value_name = "FILE")]
    resources: Option<PathBuf>,
    /// Most bytes of memory, as 512M or 2G; -1: no limit
    #[arg(long, value_name = "SIZE", value_parser = bytes, allow_hyphen_values = true)]
    memory: Option<i64>,
    /// Most bytes of memory and swap together; -1: no limit
    #[arg(long, value_name = "SIZE", value_parser = bytes, allow_hyphen_values = true)]
    memory_swap: Option<i64>,
    /// Bytes of memory that stay while the host's memory is short
    #[arg(long, value_name = "SIZE", value_parser = bytes, allow_hyphen_values = true)]
    memory_reservation: Option<i64>,
    /// Period of processor time, in microseconds
    #[arg(long, value_name = "TIME")]
    cpu_period: Option<u64>,
    /// Processor time in each period, in microseconds; -1: no limit
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    cpu_quota: Option<i64>,
    /// Processor time that may be saved up for later periods, in microseconds
    #[arg(long, value_name = "TIME")]
    cpu_burst: Option<u64>,
    /// Weight against other groups, 2 to 262144
    #[arg(long, visible_alias = "cpu-shares", value_name = "N")]
    cpu_share: Option<u64>,
    /// Period of real-time processor time, in microseconds
    #[arg(long, value_name = "TIME")]
    cpu_rt_period: Option<u64>,
    /// Real-time processor time in each period, in microseconds
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    cpu_rt_runtime: Option<i64>,
    /// Processors, as 0-3,5
    #[arg(long, value_name = "LIST")]
    cpuset_cpus: Option<String>,
    /// Memory nodes, as 0-1
    #[arg(long, value_name = "LIST")]
    cpuset_mems: Option<String>,
    /// Most tasks; -1: no limit
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pids_limit: Option<i64>,
    /// Weight of its disk operations, 10 to 1000
    #[arg(long, value_name = "N")]
    blkio_weight: Option<u16>,
    /// Accepted without effect, as runc does
    #[arg(long, value_name = "SIZE", hide = true, allow_hyphen_values = true)]
    kernel_memory: Option<String>,
    /// Accepted without effect, as runc does
    #[arg(long, value_name = "SIZE", hide = true, allow_hyphen_values = true)]
    kernel_memory_tcp: Option<String>,
    /// Accepted without effect: no cache of the processor is divided up
    #[arg(long, value_name = "SCHEMA", hide = true)]
    l3_cache_schema: Option<String>,
    /// Accepted without effect: no bandwidth of memory is divided up
    #[arg(long, value_name = "SCHEMA", hide = true)]
    mem_bw_schema: Option<String>,
}

/// A size, or -1.
fn bytes(text: &str) -> Result<i64, String> {
    if text == "-1" {
        return Ok(-1);
    }
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    i64::try_from(bytes).map_err(|_| "that is more than any memory".to_owned())
}

pub fn run(root: &Root, args: &UpdateArgs) -> Result<u8, Failure> {
    let id = Id::new(&args.id)?;
    let change = match &args.resources {
        Some(file) => read(&id, file)?,
        None => args.change(),
    };
    if args.kernel_memory.is_some() || args.kernel_memory_tcp.is_some() {
        remark("--kernel-memory is not applied: no kernel of today has this limit");
    }
    let wrong = |error: serde_json::Error| {
        format!(
            "cannot change limits of container {}: {error}; see linux.resources in the OCI runtime specification",
            id.as_str()
        )
    };
    let change: LinuxResources = serde_json::from_value(change).map_err(wrong)?;
    orders::update(root, &id, &change)?;
    Ok(0)
}

fn read(id: &Id, file: &Path) -> Result<Value, Failure> {
    let mut text = Vec::new();
    let from: std::io::Result<Box<dyn Read>> = match file.to_str() {
        Some("-") => Ok(Box::new(std::io::stdin())),
        _ => std::fs::File::open(file).map(|file| Box::new(file) as Box<dyn Read>),
    };
    let taken = from.and_then(|from| from.take(RESOURCES_MAX).read_to_end(&mut text));
    let id = id.as_str();
    taken.map_err(|error| {
        let file = file.display();
        format!("cannot change limits of container {id}: {file}: {error}; pass a readable --resources")
    })?;
    Ok(serde_json::from_slice(&text).map_err(|error| {
        let file = file.display();
        format!("cannot change limits of container {id}: {file} is no JSON of limits: {error}; correct it")
    })?)
}

impl UpdateArgs {
    /// The changes that the options ask for, in the form of `linux.resources`.
    fn change(&self) -> Value {
        let mut all = Map::new();
        let mut put = |group: &str, name: &str, value: Option<Value>| {
            let Some(value) = value else { return };
            if let Value::Object(members) = all.entry(group).or_insert(json!({})) {
                members.insert(name.to_owned(), value);
            }
        };
        let json = |value: Option<i64>| value.map(Value::from);
        // No memory limit means none for both, as runc has it.
        let swap = self.memory_swap.or(self.memory.filter(|limit| *limit == -1));
        put("memory", "limit", json(self.memory));
        put("memory", "swap", json(swap));
        put("memory", "reservation", json(self.memory_reservation));
        put("cpu", "period", self.cpu_period.map(Value::from));
        put("cpu", "quota", json(self.cpu_quota));
        put("cpu", "burst", self.cpu_burst.map(Value::from));
        put("cpu", "shares", self.cpu_share.map(Value::from));
        put("cpu", "realtimePeriod", self.cpu_rt_period.map(Value::from));
        put("cpu", "realtimeRuntime", json(self.cpu_rt_runtime));
        put("cpu", "cpus", self.cpuset_cpus.clone().map(Value::from));
        put("cpu", "mems", self.cpuset_mems.clone().map(Value::from));
        put("pids", "limit", json(self.pids_limit));
        put("blockIO", "weight", self.blkio_weight.map(Value::from));
        Value::Object(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    #[test]
    fn options_become_limits_and_what_is_not_given_is_not_named() {
        let line = "dormouse update --memory 64M --cpu-share 7 --pids-limit -1 --cpuset-cpus 0-1 web";
        let Command::Update(args) = Cli::try_parse_from(line.split(' ')).unwrap().command else { panic!() };
        let wanted = json!({
            "memory": {"limit": 64 << 20}, "cpu": {"shares": 7, "cpus": "0-1"}, "pids": {"limit": -1},
        });
        assert_eq!(args.change(), wanted);
        serde_json::from_value::<LinuxResources>(args.change()).unwrap();
    }
}
