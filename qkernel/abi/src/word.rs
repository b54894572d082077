//! Narrowing of integers, each by its meaning. Whatever else is narrowed goes through `try_from`.

const _: () = assert!(usize::BITS == 64, "both sides run on x86-64");

/// `value` as a `usize`, which is as wide here: nothing is lost.
#[expect(clippy::cast_possible_truncation, reason = "a usize has 64 bits, as asserted above")]
#[must_use]
pub const fn to_usize(value: u64) -> usize {
    value as usize
}

/// The low half of a register: an argument that is 32 bits wide in the call's ABI, whose high half Linux does not look
/// at either.
#[expect(clippy::cast_possible_truncation, reason = "the high half is to be dropped")]
#[must_use]
pub const fn low32(value: u64) -> u32 {
    value as u32
}

/// The high half of a register.
#[must_use]
pub const fn high32(value: u64) -> u32 {
    (value >> 32) as u32
}

/// The lowest 16 bits of a word.
#[must_use]
pub const fn low16(value: u64) -> u16 {
    let [a, b, ..] = value.to_le_bytes();
    u16::from_le_bytes([a, b])
}

/// The low byte of a word.
#[must_use]
pub const fn low8(value: u64) -> u8 {
    value.to_le_bytes()[0]
}

/// A length as a `u32` field of the ABI, whose limits are far lower. A longer one saturates: the other side refuses it.
#[must_use]
pub fn len32(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_keeps_what_its_name_says() {
        let value = 0x8765_4321_fedc_ba98;
        assert_eq!((low32(value), high32(value)), (0xfedc_ba98, 0x8765_4321));
        assert_eq!((low16(value), low8(value)), (0xba98, 0x98));
        assert_eq!(to_usize(u64::MAX), usize::MAX);
        assert_eq!((len32(7), len32(usize::MAX)), (7, u32::MAX));
    }
}
