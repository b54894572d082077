//! Limits of block devices, in the words of either version.

use std::collections::BTreeMap;
use std::path::Path;

use super::error::CgroupError;
use super::limits::write;
use crate::resources::block_io::{BlockIo, RateKind};

/// Which file has the weights: that of the scheduler BFQ where it is there, as runc chooses.
fn weights<'a>(dir: &Path, bfq: &'a str, other: &'a str) -> &'a str {
    if dir.join(bfq).exists() { bfq } else { other }
}

pub(super) fn set_v1(dir: &Path, limits: &BlockIo) -> Result<(), CgroupError> {
    if let Some(weight) = limits.weight {
        write(dir, weights(dir, "blkio.bfq.weight", "blkio.weight"), weight)?;
    }
    for (device, weight) in &limits.device_weights {
        let file = weights(dir, "blkio.bfq.weight_device", "blkio.weight_device");
        write(dir, file, format!("{device} {weight}"))?;
    }
    for rate in &limits.rates {
        let file = match rate.kind {
            RateKind::ReadBytes => "blkio.throttle.read_bps_device",
            RateKind::WriteBytes => "blkio.throttle.write_bps_device",
            RateKind::Reads => "blkio.throttle.read_iops_device",
            RateKind::Writes => "blkio.throttle.write_iops_device",
        };
        write(dir, file, format!("{} {}", rate.device, rate.most))?;
    }
    Ok(())
}

pub(super) fn set_v2(dir: &Path, limits: &BlockIo) -> Result<(), CgroupError> {
    let file = weights(dir, "io.bfq.weight", "io.weight");
    let scale = |weight: u16| if file == "io.weight" { io_weight(weight) } else { u32::from(weight) };
    if let Some(weight) = limits.weight {
        write(dir, file, format!("default {}", scale(weight)))?;
    }
    for (device, weight) in &limits.device_weights {
        write(dir, file, format!("{device} {}", scale(*weight)))?;
    }
    let mut of_devices: BTreeMap<String, String> = BTreeMap::new();
    for rate in &limits.rates {
        let key = match rate.kind {
            RateKind::ReadBytes => "rbps",
            RateKind::WriteBytes => "wbps",
            RateKind::Reads => "riops",
            RateKind::Writes => "wiops",
        };
        let most = if rate.most == 0 { "max".to_owned() } else { rate.most.to_string() };
        let line = of_devices.entry(rate.device.to_string()).or_default();
        *line += &format!(" {key}={most}");
    }
    of_devices.iter().try_for_each(|(device, rates)| write(dir, "io.max", format!("{device}{rates}")))
}

/// A weight of version 1 (10 to 1000) as one of version 2 (1 to 10000), as runc has it.
fn io_weight(weight: u16) -> u32 {
    1 + (u32::from(weight.clamp(10, 1000)) - 10) * 9999 / 990
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::block_io::{Device, Rate};

    #[test]
    fn each_version_has_its_own_words() {
        let device = Device { major: 8, minor: 16 };
        let rate = |kind, most| Rate { kind, device, most };
        let limits = BlockIo {
            weight: Some(1000),
            device_weights: vec![(device, 10)],
            rates: vec![rate(RateKind::ReadBytes, 4096), rate(RateKind::Writes, 0)],
        };
        let dir = testdir::TempDir::new();
        let read = |file: &str| std::fs::read_to_string(dir.path().join(file)).unwrap_or_default();
        set_v1(dir.path(), &limits).unwrap();
        assert_eq!((read("blkio.weight"), read("blkio.weight_device")), ("1000".into(), "8:16 10".into()));
        assert_eq!(read("blkio.throttle.read_bps_device"), "8:16 4096");
        assert_eq!(read("blkio.throttle.write_iops_device"), "8:16 0");
        set_v2(dir.path(), &limits).unwrap();
        assert_eq!((read("io.weight"), read("io.max")), ("8:16 1".into(), "8:16 rbps=4096 wiops=max".into()));
        std::fs::write(dir.path().join("io.bfq.weight"), "").unwrap();
        set_v2(dir.path(), &BlockIo { weight: Some(300), ..BlockIo::default() }).unwrap();
        assert_eq!(read("io.bfq.weight"), "default 300");
        assert_eq!((io_weight(10), io_weight(1000)), (1, 10_000));
    }
}
