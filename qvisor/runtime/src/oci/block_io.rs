//! `linux.resources.blockIO`, checked.

use oci_spec::runtime::{LinuxBlockIo, LinuxThrottleDevice};

use super::error::{BundleError, Result};
use crate::resources::block_io::{BlockIo, Device, Rate, RateKind};

pub(super) fn block_io(asked: &LinuxBlockIo) -> Result<BlockIo> {
    let has_leaf = |weight: Option<u16>| weight.is_some_and(|weight| weight > 0);
    let weights = asked.weight_device().as_deref().unwrap_or_default();
    if has_leaf(asked.leaf_weight()) || weights.iter().any(|one| has_leaf(one.leaf_weight())) {
        let why = "the schedulers of today's kernels have none";
        return Err(BundleError::refused_because("linux.resources.blockIO.leafWeight", why));
    }
    let mut limits = BlockIo { weight: weight(asked.weight())?, ..BlockIo::default() };
    for one in weights {
        if let Some(value) = weight(one.weight())? {
            limits.device_weights.push((device(one.major(), one.minor())?, value));
        }
    }
    limits.rates = [
        (RateKind::ReadBytes, asked.throttle_read_bps_device()),
        (RateKind::WriteBytes, asked.throttle_write_bps_device()),
        (RateKind::Reads, asked.throttle_read_iops_device()),
        (RateKind::Writes, asked.throttle_write_iops_device()),
    ]
    .into_iter()
    .flat_map(|(kind, list)| list.iter().flatten().map(move |one| rate(kind, one)))
    .collect::<Result<_>>()?;
    Ok(limits)
}

fn rate(kind: RateKind, one: &LinuxThrottleDevice) -> Result<Rate> {
    Ok(Rate { kind, device: device(one.major(), one.minor())?, most: one.rate() })
}

fn weight(asked: Option<u16>) -> Result<Option<u16>> {
    match asked {
        None | Some(0) => Ok(None),
        Some(10..=1000) => Ok(asked),
        Some(other) => {
            let why = "and a weight is from 10 to 1000";
            Err(BundleError::invalid("linux.resources.blockIO.weight", other, why))
        }
    }
}

fn device(major: i64, minor: i64) -> Result<Device> {
    match (u32::try_from(major), u32::try_from(minor)) {
        (Ok(major), Ok(minor)) => Ok(Device { major, minor }),
        _ => {
            let number = format!("{major}:{minor}");
            Err(BundleError::invalid("linux.resources.blockIO", number, "which is no number of a device"))
        }
    }
}
