//! Messages of which no generated code exists here, field by field.

use containerd_shim_protos::protobuf::{CodedInputStream, CodedOutputStream, Error};

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Number(u64),
    Bytes(Vec<u8>),
}

/// A field's number and value.
pub type Field = (u32, Value);

/// Fields of numbers and of bytes, in their order; others are left out.
pub fn read(message: &[u8]) -> Result<Vec<Field>, Error> {
    let mut input = CodedInputStream::from_bytes(message);
    let mut fields = Vec::new();
    while let Some(tag) = input.read_raw_tag_or_eof()? {
        let (number, kind) = (tag >> 3, tag & 7);
        match kind {
            0 => fields.push((number, Value::Number(input.read_uint64()?))),
            2 => fields.push((number, Value::Bytes(input.read_bytes()?))),
            1 => drop(input.read_fixed64()?),
            5 => drop(input.read_fixed32()?),
            _ => return Err(std::io::Error::from(std::io::ErrorKind::InvalidData).into()),
        }
        if number == 0 {
            return Err(std::io::Error::from(std::io::ErrorKind::InvalidData).into());
        }
    }
    Ok(fields)
}

/// The last bytes of that number; none: empty.
#[must_use]
pub fn bytes(fields: &[Field], number: u32) -> Vec<u8> {
    let of_number = fields.iter().rev().find_map(|field| match field {
        (at, Value::Bytes(bytes)) if *at == number => Some(bytes.clone()),
        _ => None,
    });
    of_number.unwrap_or_default()
}

/// The last text of that number; none: empty. Bytes that are no UTF-8 are replaced.
#[must_use]
pub fn text(fields: &[Field], number: u32) -> String {
    String::from_utf8_lossy(&bytes(fields, number)).into_owned()
}

/// A message of these fields.
#[must_use]
pub fn write(fields: &[Field]) -> Vec<u8> {
    let mut message = Vec::new();
    let mut output = CodedOutputStream::vec(&mut message);
    for (number, value) in fields {
        // Nothing fails that writes to memory.
        let _ = match value {
            Value::Number(value) => output.write_uint64(*number, *value),
            Value::Bytes(bytes) => output.write_bytes(*number, bytes),
        };
    }
    let _ = output.flush();
    drop(output);
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let fields = vec![(1, Value::Number(300)), (9, Value::Bytes(b"abc".to_vec())), (1, Value::Number(0))];
        assert_eq!(read(&write(&fields)).unwrap(), fields);
        assert_eq!((text(&fields, 9), bytes(&fields, 2)), ("abc".into(), Vec::new()));
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for bad in [&b"unix:///run/x"[..], b"\x0a\xff", b"\x00\x00", b"\x0b"] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }
}
