//! The eBPF program of a capture, put together from where the tracepoint's fields lie. No compiler is needed where it runs.

/// An instruction of eBPF, in its eight bytes (RFC 9669, section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Instruction {
    opcode: u8,
    /// Destination register in the low half, source in the high one.
    registers: u8,
    offset: i16,
    immediate: i32,
}

const _: () = assert!(size_of::<Instruction>() == 8);

/// A field of a tracepoint's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Field {
    /// Where it lies in the record.
    pub offset: i16,
    /// Its bytes: 1, 2, 4 or 8.
    pub size: u8,
}

/// The fields of `filemap/mm_filemap_add_to_page_cache` that the program reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fields {
    pub inode: Field,
    pub device: Field,
    pub index: Field,
    /// log2 of the pages of a folio; kernels before 6.8 add page by page, and do not say it.
    pub order: Option<Field>,
}

impl Fields {
    /// Reads them from the tracepoint's `format` file.
    pub fn parse(format: &str) -> Option<Self> {
        let field = |name: &str| {
            format.lines().find_map(|line| {
                let mut parts = line.trim().strip_prefix("field:")?.split(';').map(str::trim);
                let is_it = parts.next()?.rsplit([' ', '*']).next()? == name;
                let number = |part: Option<&str>, of: &str| part?.strip_prefix(of)?.parse::<u8>().ok();
                let (offset, size) = (number(parts.next(), "offset:")?, number(parts.next(), "size:")?);
                (is_it && matches!(size, 1 | 2 | 4 | 8)).then_some(Field { offset: offset.into(), size })
            })
        };
        Some(Self {
            inode: field("i_ino")?,
            device: field("s_dev")?,
            index: field("index")?,
            order: field("order"),
        })
    }
}

/// Bytes that the program passes on for each fill: the index of the first page, and log2 of how many there are.
pub(super) const EVENT_BYTES: i32 = 16;

const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R3: u8 = 3;
const CONTEXT: u8 = 6;
const INDEX: u8 = 7;
const ORDER: u8 = 8;
const STACK: u8 = 10;

const MAP_LOOKUP: i32 = 1;
const RING_RESERVE: i32 = 131;
const RING_SUBMIT: i32 = 132;
/// The immediate of a 64-bit load is a descriptor of a map.
const MAP_FD: u8 = 1;

fn code(opcode: u8, to: u8, from: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction { opcode, registers: to | from << 4, offset, immediate }
}

fn set(to: u8, value: i32) -> Instruction {
    code(0xb7, to, 0, 0, value)
}

fn copy(to: u8, from: u8) -> Instruction {
    code(0xbf, to, from, 0, 0)
}

/// Loads a field of the record.
fn load(to: u8, field: Field) -> Instruction {
    let size = match field.size {
        1 => 0x10,
        2 => 0x08,
        4 => 0x00,
        _ => 0x18,
    };
    code(0x61 | size, to, CONTEXT, field.offset, 0)
}

fn store_u64(to: u8, offset: i16, from: u8) -> Instruction {
    code(0x7b, to, from, offset, 0)
}

/// Loads 64 bits; `kind` says what they are.
fn wide(to: u8, kind: u8, value: u64) -> [Instruction; 2] {
    let half = |from: usize| {
        let bytes = value.to_le_bytes();
        i32::from_le_bytes([bytes[from], bytes[from + 1], bytes[from + 2], bytes[from + 3]])
    };
    [code(0x18, to, kind, 0, half(0)), code(0, 0, 0, 0, half(4))]
}

fn call(helper: i32) -> Instruction {
    code(0x85, 0, 0, 0, helper)
}

const EXIT: Instruction = Instruction { opcode: 0x95, registers: 0, offset: 0, immediate: 0 };

/// Passes the fills of one inode on to a ring, and counts in a map those for which that has no room.
pub(super) fn program(
    fields: &Fields,
    (device, inode): (u32, u64),
    ring: i32,
    lost: i32,
) -> Vec<Instruction> {
    // From a jump behind which so many instructions are left out.
    let unless_equal = |a: u8, b: u8, skipped: i16| code(0x5d, a, b, skipped, 0);
    let if_zero = |a: u8, skipped: i16| code(0x15, a, 0, skipped, 0);
    let ours = [
        vec![
            load(INDEX, fields.index),
            fields.order.map_or_else(|| set(ORDER, 0), |field| load(ORDER, field)),
        ],
        wide(R1, MAP_FD, u64::from(ring.cast_unsigned())).to_vec(),
        vec![set(R2, EVENT_BYTES), set(R3, 0), call(RING_RESERVE), if_zero(R0, 7)],
        vec![store_u64(R0, 0, INDEX), store_u64(R0, 8, ORDER), copy(R1, R0), set(R2, 0), call(RING_SUBMIT)],
        vec![set(R0, 0), EXIT],
        // There is no room.
        vec![code(0x62, STACK, 0, -4, 0)],
        wide(R1, MAP_FD, u64::from(lost.cast_unsigned())).to_vec(),
        vec![copy(R2, STACK), code(0x07, R2, 0, 0, -4), call(MAP_LOOKUP), if_zero(R0, 2)],
        vec![set(R1, 1), code(0xdb, R0, R1, 0, 0)],
    ]
    .concat();
    let all = i16::try_from(ours.len()).unwrap_or(i16::MAX);
    let device = u64::from(device);
    [
        vec![copy(CONTEXT, R1), load(R1, fields.inode)],
        wide(R2, 0, inode).to_vec(),
        vec![unless_equal(R1, R2, all + 4), load(R1, fields.device)],
        wide(R2, 0, device).to_vec(),
        vec![unless_equal(R1, R2, all)],
        ours,
        vec![set(R0, 0), EXIT],
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: &str = "name: mm_filemap_add_to_page_cache\nID: 600\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\
        \tfield:unsigned long pfn;\toffset:8;\tsize:8;\tsigned:0;\n\
        \tfield:unsigned long i_ino;\toffset:16;\tsize:8;\tsigned:0;\n\
        \tfield:unsigned long index;\toffset:24;\tsize:8;\tsigned:0;\n\
        \tfield:dev_t s_dev;\toffset:32;\tsize:4;\tsigned:0;\n\
        \tfield:unsigned char order;\toffset:36;\tsize:1;\tsigned:0;\n";

    #[test]
    fn fields_are_found_by_their_names() {
        let fields = Fields::parse(FORMAT).unwrap();
        assert_eq!(fields.index, Field { offset: 24, size: 8 });
        assert_eq!(fields.device, Field { offset: 32, size: 4 });
        assert_eq!(fields.order, Some(Field { offset: 36, size: 1 }));
        let older = FORMAT.replace("order;", "other;");
        assert_eq!(Fields::parse(&older).unwrap().order, None);
        for damaged in [FORMAT.replace("i_ino", "x"), FORMAT.replace("size:8", "size:7"), String::new()] {
            assert_eq!(Fields::parse(&damaged), None);
        }
    }

    #[test]
    fn jumps_lead_to_the_end() {
        let program = program(&Fields::parse(FORMAT).unwrap(), (1, 2), 5, 6);
        let targets = program.iter().zip(1_i16..).filter(|(code, _)| code.opcode == 0x5d);
        let end = i16::try_from(program.len()).unwrap() - 2;
        assert_eq!(targets.map(|(code, next)| next + code.offset).collect::<Vec<_>>(), [end, end]);
        assert_eq!(program.last(), Some(&EXIT));
    }
}
