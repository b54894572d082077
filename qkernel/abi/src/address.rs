//! Internet addresses, as both sides compare them.

/// An address in network order; one of IPv4 as `::ffff:a.b.c.d`.
pub type Address = [u8; 16];

/// Bits of an address before those of IPv4.
const V4_BITS: u32 = 96;
const V4_START: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// All addresses whose first `bits` bits are those of `address`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressPrefix {
    /// An address of the range.
    pub address: Address,
    /// Bits that all of its addresses have in common, from the first on.
    pub bits: u32,
}
pin_layout!(AddressPrefix, 20, address: 0, bits: 16);

/// An IPv4 address as one of IPv6.
pub fn of_v4([a, b, c, d]: [u8; 4]) -> Address {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

impl AddressPrefix {
    /// `None`: an address has fewer bits.
    pub fn v4(address: [u8; 4], bits: u32) -> Option<Self> {
        (bits <= 32).then(|| Self { address: of_v4(address), bits: V4_BITS + bits })
    }

    /// `None`: an address has fewer bits.
    pub fn v6(address: Address, bits: u32) -> Option<Self> {
        (bits <= 128).then_some(Self { address, bits })
    }

    /// Whether it is of IPv4. `::/0` is of IPv6, and has no address of IPv4.
    fn is_v4(&self) -> bool {
        self.bits >= V4_BITS && self.address.starts_with(&V4_START)
    }

    /// Whether an address is one of them.
    pub fn has(&self, address: &Address) -> bool {
        let (of_self, of_other) = (u128::from_be_bytes(self.address), u128::from_be_bytes(*address));
        let beyond = 128_u32.saturating_sub(self.bits);
        let differing = (of_self ^ of_other).checked_shr(beyond).unwrap_or(0);
        differing == 0 && self.is_v4() == address.starts_with(&V4_START)
    }

    /// Whether all of another's addresses are of them.
    pub fn covers(&self, other: &Self) -> bool {
        self.bits <= other.bits && self.is_v4() == other.is_v4() && self.has(&other.address)
    }

    /// On the wire: the address, then the bits (u32, little endian).
    pub fn to_bytes(&self) -> [u8; 20] {
        let mut bytes = [0; 20];
        let (address, bits) = bytes.split_at_mut(16);
        address.copy_from_slice(&self.address);
        bits.copy_from_slice(&self.bits.to_le_bytes());
        bytes
    }

    /// Reads a prefix as [`Self::to_bytes`] writes it; `None`: the bytes are none.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (address, bits) = bytes.split_first_chunk()?;
        Self::v6(*address, u32::from_le_bytes(bits.try_into().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v6(first: u8, last: u8) -> Address {
        let mut address = [0; 16];
        (address[0], address[15]) = (first, last);
        address
    }

    #[test]
    fn prefixes_have_the_addresses_that_begin_so() {
        let net = AddressPrefix::v4([10, 88, 0, 7], 16).unwrap();
        assert!(net.has(&of_v4([10, 88, 255, 1])) && !net.has(&of_v4([10, 89, 0, 7])));
        let one = AddressPrefix::v4([10, 88, 0, 7], 32).unwrap();
        assert!(one.has(&of_v4([10, 88, 0, 7])) && !one.has(&of_v4([10, 88, 0, 6])));
        let net = AddressPrefix::v6(v6(0xfd, 0), 8).unwrap();
        assert!(net.has(&v6(0xfd, 9)) && !net.has(&v6(0xfc, 9)));
        let odd = AddressPrefix::v6(v6(0xff, 0), 3).unwrap();
        assert!(odd.has(&v6(0xe0, 1)) && !odd.has(&v6(0xc0, 1)));
        assert_eq!((AddressPrefix::v4([0; 4], 33), AddressPrefix::v6([0; 16], 129)), (None, None));
    }

    #[test]
    fn all_of_one_family_are_none_of_the_other() {
        let (v4, v6_all) = (AddressPrefix::v4([0; 4], 0).unwrap(), AddressPrefix::v6([0; 16], 0).unwrap());
        assert!(v4.has(&of_v4([1, 2, 3, 4])) && !v4.has(&v6(0, 1)));
        assert!(v6_all.has(&v6(0xfe, 1)) && !v6_all.has(&of_v4([1, 2, 3, 4])));
        assert!(!v6_all.covers(&v4) && !v4.covers(&v6_all) && v4.covers(&v4));
        let mapped = AddressPrefix::v6(of_v4([10, 0, 0, 0]), 104).unwrap();
        assert!(mapped.has(&of_v4([10, 1, 1, 1])) && !mapped.has(&of_v4([11, 1, 1, 1])));
        assert!(v4.covers(&mapped) && !mapped.covers(&v4));
    }

    #[test]
    fn they_are_the_same_on_the_wire() {
        let net = AddressPrefix::v4([10, 88, 0, 0], 16).unwrap();
        assert_eq!(AddressPrefix::from_bytes(&net.to_bytes()), Some(net));
        for bad in [&net.to_bytes()[..19], &[&net.to_bytes()[..], &[0]].concat(), &[0xff; 20], &[]] {
            assert_eq!(AddressPrefix::from_bytes(bad), None);
        }
    }
}
