//! Bits into and out of bytes, the lowest first, as DEFLATE packs them.

use crate::error::Corrupt;

/// Writes bits into a range of bytes, and notices when it is full.
pub struct BitWriter<'a> {
    out: &'a mut [u8],
    at: usize,
    bits: u64,
    count: u32,
    is_full: bool,
}

impl<'a> BitWriter<'a> {
    pub fn new(out: &'a mut [u8]) -> Self {
        Self { out, at: 0, bits: 0, count: 0, is_full: false }
    }

    /// Adds the low `count` bits of `value`, which has no others. At most 56 bits may come between two [`flush`](Self::flush).
    #[inline(always)]
    pub fn put(&mut self, value: u32, count: u32) {
        debug_assert!(self.count + count <= 63 && (count == 32 || value >> count == 0));
        self.bits |= u64::from(value).wrapping_shl(self.count);
        self.count = self.count.wrapping_add(count);
    }

    /// Writes out all whole bytes.
    #[inline(always)]
    pub fn flush(&mut self) {
        match self.out[self.at..].first_chunk_mut() {
            Some(to) => *to = self.bits.to_le_bytes(),
            None => self.flush_near_end(),
        }
        self.at = (self.at + (self.count >> 3) as usize).min(self.out.len());
        self.bits = self.bits.wrapping_shr(self.count & !7);
        self.count &= 7;
    }

    #[cold]
    fn flush_near_end(&mut self) {
        let bytes = self.bits.to_le_bytes();
        let whole = (self.count >> 3) as usize;
        let room = self.out.len() - self.at;
        self.is_full |= whole > room;
        let count = whole.min(room);
        self.out[self.at..self.at + count].copy_from_slice(&bytes[..count]);
    }

    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// How many bits were put.
    pub fn bits_put(&self) -> usize {
        self.at * 8 + self.count as usize
    }

    /// Fills the last byte with zeros. Returns how many bytes there are, or nothing if they did not fit.
    pub fn finish(mut self) -> Option<usize> {
        self.count = self.count.next_multiple_of(8);
        self.flush();
        (!self.is_full).then_some(self.at)
    }
}

/// Reads bits out of bytes. Behind the end there are zeros; [`position`](Self::position) tells that they were read.
pub struct BitReader<'a> {
    input: &'a [u8],
    /// Index of the first byte that is not counted in `count`. It may lie behind the end.
    at: usize,
    /// The next bits. Those above `count` are the input's too, or zeros.
    bits: u64,
    /// How many bits of `bits` are there, in its low six bits. The others mean nothing, so that whole entries of a
    /// lookup table can be subtracted.
    count: u32,
}

impl<'a> BitReader<'a> {
    pub fn new(input: &'a [u8]) -> Self {
        Self { input, at: 0, bits: 0, count: 0 }
    }

    /// Makes at least 56 bits ready.
    #[inline(always)]
    pub fn refill(&mut self) {
        match self.input.get(self.at..).and_then(<[u8]>::first_chunk) {
            Some(next) => {
                self.bits |= u64::from_le_bytes(*next).wrapping_shl(self.count);
                self.at += (!self.count >> 3 & 7) as usize;
                self.count |= 56;
            }
            None => self.refill_near_end(),
        }
    }

    #[cold]
    #[inline(never)]
    fn refill_near_end(&mut self) {
        self.count &= 63;
        while self.count < 56 {
            let next = self.input.get(self.at).copied().unwrap_or(0);
            self.bits |= u64::from(next) << self.count;
            self.at += 1;
            self.count += 8;
        }
    }

    /// The next bits, of which as many count as [`refill`](Self::refill) promised and were not consumed since.
    #[inline(always)]
    pub fn peek(&self) -> u64 {
        self.bits
    }

    /// Consumes as many bits as the low six bits of `entry` say; the others are ignored.
    #[inline(always)]
    pub fn consume(&mut self, entry: u32) {
        self.bits = self.bits.wrapping_shr(entry);
        self.count = self.count.wrapping_sub(entry);
    }

    /// Takes up to 32 bits, refilling before.
    pub fn take(&mut self, count: u32) -> u32 {
        self.refill();
        let value = self.bits & ((1 << count) - 1);
        self.consume(count);
        u32::try_from(value).expect("at most 32 bits")
    }

    /// How many bits were consumed. It is beyond the input's if zeros behind the end were among them.
    pub fn position(&self) -> usize {
        self.at * 8 - (self.count & 63) as usize
    }

    /// Whether zeros behind the end were consumed.
    pub fn is_behind_end(&self) -> bool {
        self.position() > self.input.len() * 8
    }

    /// Goes on at a byte border and gives `len` whole bytes.
    pub fn take_bytes(&mut self, len: usize) -> Result<&'a [u8], Corrupt> {
        let at = self.position().div_ceil(8);
        let bytes =
            self.input.get(at..).and_then(|rest| rest.get(..len)).ok_or(Corrupt("it ends too early"))?;
        *self = Self { input: self.input, at: at + len, bits: 0, count: 0 };
        Ok(bytes)
    }

    /// The end: every byte was needed, and no more.
    pub fn finish(self) -> Result<(), Corrupt> {
        match self.position().div_ceil(8).cmp(&self.input.len()) {
            std::cmp::Ordering::Less => Err(Corrupt("something follows its end")),
            std::cmp::Ordering::Equal => Ok(()),
            std::cmp::Ordering::Greater => Err(Corrupt("it ends too early")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_come_back_as_they_were_put() {
        let values: Vec<(u32, u32)> =
            (0..400_u32).map(|n| (n * 2_654_435 % (1 << (n % 20)), n % 20)).collect();
        let mut bytes = [0; 1000];
        let mut writer = BitWriter::new(&mut bytes);
        for (value, count) in &values {
            writer.put(*value, *count);
            writer.flush();
        }
        let bits = writer.bits_put();
        assert_eq!(bits, values.iter().map(|(_, count)| *count as usize).sum());
        let len = writer.finish().unwrap();
        assert_eq!(len, bits.div_ceil(8));
        let mut reader = BitReader::new(&bytes[..len]);
        for (value, count) in values {
            assert_eq!(reader.take(count), value);
        }
        assert_eq!(reader.position(), bits);
        reader.finish().unwrap();
    }

    #[test]
    fn a_writer_without_room_says_so_and_writes_no_further() {
        for room in 0..20 {
            let mut bytes = [0xaa; 24];
            let mut writer = BitWriter::new(&mut bytes[..room]);
            for _ in 0..10 {
                writer.put(0x1ff, 9);
                writer.flush();
            }
            assert_eq!(writer.finish(), (room >= 12).then_some(12), "{room}");
            assert!(bytes[room..].iter().all(|byte| *byte == 0xaa));
        }
    }

    #[test]
    fn reading_behind_the_end_shows() {
        let mut reader = BitReader::new(&[1, 2]);
        assert_eq!((reader.take(16), reader.position()), (0x201, 16));
        assert_eq!((reader.take(3), reader.position()), (0, 19));
        assert!(reader.finish().is_err());
        let mut reader = BitReader::new(&[1, 2, 3]);
        reader.take(3);
        assert_eq!(reader.take_bytes(1).unwrap(), [2]);
        assert!(reader.take_bytes(2).is_err());
    }
}
