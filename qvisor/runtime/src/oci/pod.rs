//! Pods: what a bundle says of the other containers that it belongs together with.
//!
//! containerd and CRI-O name a pod by the container with which it begins, and say how large it is to be.

use std::collections::BTreeMap;

use super::error::{BundleError, Result};
use crate::resources::{Cpu, Resources};

/// The annotations for a container's kind, and those for the id of the pod's first container.
const KINDS: [&str; 2] = ["io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType"];
const FIRSTS: [&str; 2] = ["io.kubernetes.cri.sandbox-id", "io.kubernetes.cri-o.SandboxID"];
/// The annotations for a container's name, which it has in any pod that is made of the same parts.
const NAMES: [&str; 2] = ["io.kubernetes.cri.container-name", "io.kubernetes.container.name"];
/// The size of a pod: what all its containers are to have together. 0: not limited.
const SIZE: &str = "io.kubernetes.cri.sandbox-";
/// The least share of processor time that a group of version 1 can have.
const LEAST_SHARES: u64 = 2;

/// The place of a container in a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Pod {
    /// It is in none.
    #[default]
    None,
    /// The pod begins with it.
    First(PodSize),
    /// It comes to the pod that began with the container of this id.
    Further(String),
}

/// The size of a pod; `None`: not limited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSize {
    pub memory_bytes: Option<u64>,
    pub cpu_shares: Option<u64>,
    /// Microseconds.
    pub cpu_quota: Option<i64>,
    pub cpu_period: Option<u64>,
}

/// The name that a container of a pod has by its annotations.
pub fn container_name(annotations: &BTreeMap<String, String>) -> Option<&str> {
    NAMES.iter().find_map(|name| annotations.get(*name)).map(String::as_str)
}

impl Pod {
    pub(super) fn of(annotations: &BTreeMap<String, String>) -> Result<Self> {
        let find = |names: [&str; 2]| names.iter().find_map(|name| annotations.get(*name));
        Ok(match (find(KINDS).map(String::as_str), find(FIRSTS)) {
            (Some("sandbox"), _) => Self::First(PodSize::of(annotations)?),
            (Some("container"), Some(first)) => Self::Further(first.clone()),
            _ => Self::None,
        })
    }
}

impl PodSize {
    fn of(annotations: &BTreeMap<String, String>) -> Result<Self> {
        let number = |name: &str| -> Result<Option<i64>> {
            let name = format!("{SIZE}{name}");
            let Some(value) = annotations.get(&name) else { return Ok(None) };
            let number = value.parse::<i64>();
            let number = number.map_err(|_| BundleError::invalid(name, value, "which is no number"))?;
            Ok(Some(number).filter(|number| *number > 0))
        };
        let amount = |name| Ok(number(name)?.map(i64::cast_unsigned));
        Ok(Self {
            memory_bytes: amount("memory")?,
            cpu_shares: amount("cpu-shares")?,
            cpu_quota: number("cpu-quota")?,
            cpu_period: amount("cpu-period")?,
        })
    }

    /// The limits of a sandbox that holds the whole pod, whose first container has these of its own. Annotations come from
    /// strangers: where the bundle has a limit they change nothing. (CRI gives a pod's first container no limit, and the least
    /// share of processor time there is.)
    #[must_use]
    pub fn of_sandbox(&self, first: &Resources) -> Resources {
        let has_quota = first.cpu.quota.is_some_and(|quota| quota > 0);
        let (quota, period) = if has_quota || self.cpu_quota.is_none() {
            (first.cpu.quota, first.cpu.period)
        } else {
            (self.cpu_quota, self.cpu_period)
        };
        let shares = first.cpu.shares.filter(|shares| *shares > LEAST_SHARES).or(self.cpu_shares);
        let cpu = Cpu { shares: shares.or(first.cpu.shares), quota, period, ..first.cpu.clone() };
        Resources { memory: first.memory.or(self.memory_bytes), cpu, ..first.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(annotations: &[(&str, &str)]) -> Result<Pod> {
        Pod::of(&annotations.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect())
    }

    #[test]
    fn annotations_say_which_pod_it_is() {
        assert_eq!(pod(&[]).unwrap(), Pod::None);
        assert_eq!(pod(&[(FIRSTS[0], "p")]).unwrap(), Pod::None);
        assert_eq!(pod(&[(KINDS[0], "container"), (FIRSTS[0], "p")]).unwrap(), Pod::Further("p".into()));
        assert_eq!(pod(&[(KINDS[1], "sandbox"), (FIRSTS[1], "p")]).unwrap(), Pod::First(PodSize::default()));
    }

    #[test]
    fn a_pod_is_as_large_as_its_annotations_say() {
        let size = |name: &str| format!("{SIZE}{name}");
        let (memory, quota) = (size("memory"), size("cpu-quota"));
        let sized = pod(&[(KINDS[0], "sandbox"), (&memory, "1048576"), (&quota, "0")]).unwrap();
        let Pod::First(sized) = sized else { panic!() };
        assert_eq!((sized.memory_bytes, sized.cpu_quota), (Some(1 << 20), None));
        let sized = PodSize { cpu_quota: Some(5), cpu_shares: Some(700), ..sized };
        let own = Cpu { shares: Some(2), period: Some(9), ..Cpu::default() };
        let all = sized.of_sandbox(&Resources { cpu: own, ..Resources::default() });
        assert_eq!((all.memory, all.cpu.shares, all.cpu.quota), (Some(1 << 20), Some(700), Some(5)));
        assert_eq!(all.cpu.period, None);
        let own = Cpu { shares: Some(100), quota: Some(7), period: Some(9), ..Cpu::default() };
        let first = Resources { memory: Some(1), cpu: own, ..Resources::default() };
        assert_eq!(sized.of_sandbox(&first), first);
        assert!(pod(&[(KINDS[0], "sandbox"), (&memory, "much")]).is_err());
    }
}
