//! Addresses whose connections and datagrams do not restart the idle time.
#![deny(unsafe_code)]

use std::net::IpAddr;
use std::str::FromStr;

use abi::address::AddressPrefix;

/// Most entries of a list.
const ENTRIES_MAX: usize = 64;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ignored(Vec<AddressPrefix>);

impl Ignored {
    #[must_use]
    pub fn prefixes(&self) -> &[AddressPrefix] {
        &self.0
    }

    /// Whether all of another's addresses are ignored here as well.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        other.0.iter().all(|prefix| self.0.iter().any(|own| own.covers(prefix)))
    }
}

impl FromStr for Ignored {
    type Err = String;

    /// Reads addresses and prefixes with commas between; an empty text is none of them.
    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let entries: Result<Vec<_>, _> =
            text.split(',').take(ENTRIES_MAX + 1).map(str::trim).map(prefix).collect();
        match entries? {
            entries if entries.len() > ENTRIES_MAX => Err(format!("it has more than {ENTRIES_MAX} entries")),
            entries => Ok(Self(entries)),
        }
    }
}

fn prefix(text: &str) -> Result<AddressPrefix, String> {
    let bad =
        || format!("{text:?} is neither an address nor a prefix, as 10.0.0.7, 10.88.0.0/16 or fd00::/8");
    let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
    let is_number = |bits: &&str| !bits.is_empty() && bits.bytes().all(|byte| byte.is_ascii_digit());
    let bits =
        bits.map(|bits| Some(bits).filter(is_number).and_then(|bits| bits.parse().ok()).ok_or_else(bad));
    let bits: Option<u32> = bits.transpose()?;
    let prefix = match address.parse().map_err(|_| bad())? {
        IpAddr::V4(address) => AddressPrefix::v4(address.octets(), bits.unwrap_or(32)),
        IpAddr::V6(address) => AddressPrefix::v6(address.octets(), bits.unwrap_or(128)),
    };
    prefix.ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Ignored {
        text.parse().unwrap()
    }

    #[test]
    fn lists_are_of_addresses_and_prefixes() {
        let expected = [
            AddressPrefix::v4([10, 0, 0, 7], 32).unwrap(),
            AddressPrefix::v4([10, 88, 0, 1], 16).unwrap(),
            AddressPrefix::v6(std::net::Ipv6Addr::LOCALHOST.octets(), 128).unwrap(),
            AddressPrefix::v6("fd00::".parse::<std::net::Ipv6Addr>().unwrap().octets(), 8).unwrap(),
        ];
        assert_eq!(list("10.0.0.7, 10.88.0.1/16,::1,fd00::/8").prefixes(), expected);
        assert_eq!(list(""), Ignored::default());
        for bad in [
            "10.0.0.7/33",
            "10.0.0/8",
            "::1/129",
            "10.0.0.7/",
            "10.0.0.7/+8",
            "node",
            "10.0.0.7,,::1",
            ",",
            "/8",
            "fe80::1%eth0",
            "10.0.0.7 ::1",
            "0.0.0.0/99999999999",
        ] {
            let why = bad.parse::<Ignored>().unwrap_err();
            assert!(why.contains("is neither an address nor a prefix"), "{bad}: {why}");
        }
        let many = vec!["::1"; ENTRIES_MAX + 1].join(",");
        assert!(many.parse::<Ignored>().unwrap_err().contains("more than 64"));
        assert_eq!(many[4..].parse::<Ignored>().unwrap().prefixes().len(), ENTRIES_MAX);
    }

    #[test]
    fn one_list_covers_another() {
        let net = list("10.88.0.0/16,::1");
        assert!(net.covers(&list("10.88.3.4")) && net.covers(&list("")) && net.covers(&net));
        assert!(!net.covers(&list("10.0.0.0/8")) && !net.covers(&list("10.88.3.4,fd00::1")));
        assert!(!list("").covers(&net));
    }
}
