//! Frames: a header, and a message.

/// Longest message, as in containerd's implementation.
const LENGTH_MAX: usize = 4 << 20;
const HEADER: usize = 10;
pub const REQUEST: u8 = 1;
pub const RESPONSE: u8 = 2;

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The request that it belongs to.
    pub stream: u32,
    pub kind: u8,
    pub body: Vec<u8>,
}

impl Frame {
    /// `None`: it is too long.
    #[must_use]
    pub fn encode(&self) -> Option<Vec<u8>> {
        let length = u32::try_from(self.body.len()).ok().filter(|_| self.body.len() <= LENGTH_MAX)?;
        let mut bytes = Vec::with_capacity(HEADER + self.body.len());
        bytes.extend(length.to_be_bytes());
        bytes.extend(self.stream.to_be_bytes());
        bytes.extend([self.kind, 0]);
        bytes.extend(&self.body);
        Some(bytes)
    }
}

/// A message that is longer than allowed; the stream cannot be read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// Bytes that came, until they are whole frames.
#[derive(Debug, Default)]
pub struct Inbox(Vec<u8>);

impl Inbox {
    pub fn extend(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
    }

    /// Whether nothing has come but whole frames that were taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next whole frame.
    pub fn next(&mut self) -> Result<Option<Frame>, TooLong> {
        let Some((header, rest)) = self.0.split_first_chunk::<HEADER>() else { return Ok(None) };
        let [a, b, c, d, e, f, g, h, kind, _flags] = *header;
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        if length > LENGTH_MAX {
            return Err(TooLong);
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        let frame = Frame { stream: u32::from_be_bytes([e, f, g, h]), kind, body: body.to_vec() };
        self.0.drain(..HEADER + length);
        if self.0.is_empty() {
            // Requests are rare; their room is not kept.
            self.0 = Vec::new();
        }
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_out_as_they_went_in_however_they_are_cut() {
        let frame = |stream, body: &[u8]| Frame { stream, kind: REQUEST, body: body.to_vec() };
        let frames = [frame(1, b"first"), frame(3, b""), frame(u32::MAX, &[7; 5000])];
        let bytes: Vec<u8> = frames.iter().flat_map(|frame| frame.encode().unwrap()).collect();
        for cut in [1, 9, 10, 11, 4096, bytes.len()] {
            let (mut inbox, mut got) = (Inbox::default(), Vec::new());
            for part in bytes.chunks(cut) {
                inbox.extend(part);
                while let Some(frame) = inbox.next().unwrap() {
                    got.push(frame);
                }
            }
            assert_eq!(got, frames, "{cut}");
        }
    }

    #[test]
    fn frames_that_are_too_long_end_the_stream() {
        let mut inbox = Inbox::default();
        inbox.extend(&[0xff; HEADER]);
        assert_eq!(inbox.next(), Err(TooLong));
        assert_eq!(Frame { stream: 1, kind: RESPONSE, body: vec![0; LENGTH_MAX + 1] }.encode(), None);
    }
}
