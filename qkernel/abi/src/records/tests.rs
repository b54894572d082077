extern crate std;

use std::vec::Vec;
use std::{format, vec};

use super::*;
use crate::address::AddressPrefix;
use crate::hostcall::NO_HANDLE;
use crate::mount::{FileSystem, HostKind};
use crate::seccomp::Instruction;

const PROGRAM: &[Instruction] = &[Instruction::plain(0x06, 0x7fff_0000)];
const USERS: &[[u32; 3]] = &[[0, 1000, 1], [1, 2000, 2]];

fn ignored() -> [AddressPrefix; 1] {
    [AddressPrefix::v4([10, 88, 0, 0], 16).unwrap()]
}

/// Each record, and its fields on the wire.
fn samples(ignored: &[AddressPrefix]) -> Vec<(Record<'_>, Vec<u8>)> {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let longs = |longs: &[u64]| longs.iter().flat_map(|long| long.to_le_bytes()).collect::<Vec<u8>>();
    let with = |mut bytes: Vec<u8>, more: &[u8]| {
        bytes.extend(more);
        bytes
    };
    let files = Handles { root: 7, lower: Some(8) };
    let root =
        Mount { path: &b"/"[..], source: b"overlay", kind: Kind::Host(HostKind::Overlay, files), flags: 1 };
    let settings = Settings { size_bytes: Some(1), mode: Some(0o700), uid: None, gid: Some(5) };
    let mount =
        Mount { path: &b"/d"[..], source: b"t", kind: Kind::Own(FileSystem::Tmpfs, settings), flags: 9 };
    let none = NO_HANDLE;
    let capabilities =
        Capabilities { bounding: 1, effective: 2, permitted: 3, inheritable: 4, ambient: u64::MAX };
    let flags = ProcessFlags { hold: true, make_cwd: false, no_new_privs: true };
    let ids = IdMaps { users: USERS.into(), groups: USERS[..1].into() };
    let sysctl = Setting { name: b"net/core/somaxconn", value: b"4\x0096" };
    vec![
        (Record::Arg(b"sh"), b"sh".to_vec()),
        (Record::Env(b"A=\xff"), b"A=\xff".to_vec()),
        (Record::Cwd(b"/"), b"/".to_vec()),
        (Record::Hostname(b"h"), b"h".to_vec()),
        (Record::Creds(Creds { uid: 1, gid: 2, groups: [3, 4][..].into() }), words(&[1, 2, 3, 4])),
        (Record::Mount(root), with(words(&[7, 8, 1, 2, none, none, none, none, none]), b"/\0overlay")),
        (Record::Mount(mount), with(words(&[none, none, 9, 18, 1, 0, 0o700, none, 5]), b"/d\0t")),
        (Record::Stream(Stream { fd: 3, handle: 7, flags: 6 }), words(&[3, 7, 6])),
        (Record::Rlimit(Rlimit { resource: 7, soft: 1, hard: u64::MAX }), longs(&[7, 1, u64::MAX])),
        (Record::Umask(0o22), words(&[0o22])),
        (Record::Winsize(Winsize { rows: 24, columns: 300 }), vec![24, 0, 0x2c, 1]),
        (Record::Domainname(b""), Vec::new()),
        (Record::Capabilities(capabilities), longs(&[1, 2, 3, 4, u64::MAX])),
        (Record::Masked(b"/proc/kcore"), b"/proc/kcore".to_vec()),
        (Record::ReadOnly(b"/proc/sys"), b"/proc/sys".to_vec()),
        (Record::Limit(Limit { limit: ContainerLimit::TasksMax, value: 9 }), longs(&[3, 9])),
        (Record::Flags(flags), words(&[5])),
        (Record::IdleTimeout(5), longs(&[5])),
        (Record::CpuFlags("fpu sse"), b"fpu sse".to_vec()),
        (Record::Container(1), longs(&[1])),
        (
            Record::Seccomp(Seccomp { logs: true, program: PROGRAM.into() }),
            with(words(&[1]), &PROGRAM[0].to_bytes()),
        ),
        (Record::Sysctl(sysctl), b"net/core/somaxconn\x004\x0096".to_vec()),
        (Record::OomScoreAdj(-5), (-5_i32).to_le_bytes().to_vec()),
        (Record::IdMaps(ids), words(&[2, 0, 1000, 1, 1, 2000, 2, 0, 1000, 1])),
        (Record::PidSpace(2), longs(&[2])),
        (Record::IdleIgnores(ignored.into()), ignored[0].to_bytes().to_vec()),
        (Record::IpcSpace(3), longs(&[3])),
        (Record::IpcSetting(Setting { name: b"kernel/sem", value: b"1 2" }), b"kernel/sem\x001 2".to_vec()),
        (Record::Timers(Timers { ahead_ns: 1, grid_ns: 2 }), longs(&[1, 2])),
        (Record::NetTable(NetTable { handle: 4, name: "udp6" }), with(words(&[4]), b"udp6")),
        (Record::AwakeAtMost(6), longs(&[6])),
        (Record::OutboundSleep(true), words(&[1])),
        (Record::AcceptChanged(true), words(&[1])),
        (Record::PortMap(PortMap { old: 80, new: 8080 }), words(&[80, 8080])),
        (Record::WorkingSet([3, 9][..].into()), words(&[3, 9])),
        (Record::RecordWorkingSet(RecordUntil::Exec.number()), words(&[1])),
    ]
}

/// Bytes of a record whose fields may be anything.
fn raw(number: u32, fields: &[u8]) -> Vec<u8> {
    let len = u32::try_from(fields.len()).unwrap();
    [&number.to_le_bytes()[..], &len.to_le_bytes(), fields].concat()
}

fn only(bytes: &[u8]) -> Result<Record<'_>, RecordError> {
    let mut found = decode(bytes);
    let first = found.next().unwrap();
    assert_eq!(found.next(), None);
    first
}

#[test]
fn each_record_has_its_number_and_its_bytes_for_good() {
    let ignored = ignored();
    let samples = samples(&ignored);
    let numbers: Vec<u32> = samples.iter().map(|(record, _)| record.number()).collect();
    let mut sorted = NUMBERS.to_vec();
    sorted.sort_unstable();
    let mut unique = numbers;
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique, sorted);
    assert!(sorted.windows(2).all(|pair| pair[0] < pair[1]));
    let known: [u32; 35] = [
        1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 28, 29, 30,
        31, 32, 33, 34, 37, 38, 39, 40,
    ];
    assert_eq!(sorted, known);
    for (record, fields) in &samples {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        assert_eq!(bytes, raw(record.number(), fields), "{record:?}");
        assert_eq!(only(&bytes), Ok(*record));
    }
}

#[test]
fn records_that_end_anywhere_are_read_as_far_as_they_are_whole() {
    let ignored = ignored();
    let samples = samples(&ignored);
    let (mut bytes, mut ends) = (Vec::new(), vec![0]);
    for (record, _) in &samples {
        record.encode(&mut bytes);
        ends.push(bytes.len());
    }
    for len in 0..=bytes.len() {
        let found: Vec<_> = decode(&bytes[..len]).collect();
        let whole = ends.iter().rposition(|end| *end <= len).unwrap();
        let expected = samples[..whole].iter().map(|(record, _)| Ok(*record));
        let cut = (ends[whole] != len).then_some(Err(RecordError::CutOff));
        assert_eq!(found, expected.chain(cut).collect::<Vec<_>>(), "{len} bytes");
    }
}

#[test]
fn fields_of_another_length_are_no_record_unless_a_list_or_text_ends_so() {
    let ignored = ignored();
    for (record, fields) in samples(&ignored) {
        let number = record.number();
        for len in 0..fields.len() {
            let short = raw(number, &fields[..len]);
            match only(&short) {
                Err(error) => assert_eq!(error, RecordError::Malformed { number }),
                // It is a whole record of fewer elements, and written it has the bytes that it was read from.
                Ok(found) => {
                    let mut again = Vec::new();
                    found.encode(&mut again);
                    assert_eq!(again, short, "{found:?}");
                }
            }
        }
        let mut long = fields.clone();
        long.push(0xff);
        if let Ok(found) = only(&raw(number, &long)) {
            let mut again = Vec::new();
            found.encode(&mut again);
            assert_eq!(again, raw(number, &long), "{found:?}");
        }
    }
}

#[test]
fn fields_that_mean_nothing_are_malformed() {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let mount = |head: [u32; 4], text: &[u8]| [words(&head), words(&[NO_HANDLE; 5]), text.to_vec()].concat();
    assert!(only(&raw(34, &mount([0, NO_HANDLE, 63, 1], b"/\0a"))).is_ok());
    let cases = [
        // A flag that there is not.
        (7, words(&[0, 0, 8])),
        (17, words(&[8])),
        (34, mount([0, NO_HANDLE, 64, 1], b"/\0a")),
        // A mount of no kind, of the host's files without any, of the kernel's with some, and with a lower side of nothing.
        (34, mount([0, NO_HANDLE, 0, 5], b"/\0a")),
        (34, mount([NO_HANDLE, NO_HANDLE, 0, 1], b"/\0a")),
        (34, mount([0, NO_HANDLE, 0, 16], b"/\0a")),
        (34, mount([NO_HANDLE, 0, 0, 16], b"/\0a")),
        // Settings of the host's files.
        (34, [words(&[0, NO_HANDLE, 0, 1, 0, 0, 0, 0, 0]), b"/\0a".to_vec()].concat()),
        // Words that do not end.
        (34, mount([0, NO_HANDLE, 0, 1], b"/")),
        (22, b"net/core/somaxconn".to_vec()),
        // Halves that are 0.
        (8, words(&[7, 1, 0, 0, 0, 0])),
        (16, words(&[0, 1, 0, 0])),
        // More ids of users than there are, and a part of one of groups.
        (24, words(&[2, 0, 0, 1])),
        (24, words(&[u32::MAX])),
        (24, words(&[0, 0, 0, 1, 0])),
        // A limit, a table and a truth that there are not; an address of too many bits; a text that is none.
        (16, words(&[8, 0, 0, 0])),
        (31, [words(&[1]), b"raw".to_vec()].concat()),
        (33, words(&[2])),
        (26, vec![0xff; 20]),
        (19, vec![0xff]),
        // Groups, and instructions, that are not whole.
        (5, vec![0; 11]),
        (21, vec![0; 11]),
    ];
    for (number, fields) in cases {
        assert_eq!(only(&raw(number, &fields)), Err(RecordError::Malformed { number }), "{fields:?}");
    }
}

#[test]
fn an_unknown_record_is_told_and_those_after_it_are_read() {
    let bytes = [raw(99, b"x"), raw(10, b""), raw(7, b"y"), raw(1, b"sh")].concat();
    let found: Vec<_> = decode(&bytes).collect();
    let told = [
        Err(RecordError::Unknown { number: 99 }),
        Err(RecordError::Unknown { number: 10 }),
        Err(RecordError::Malformed { number: 7 }),
        Ok(Record::Arg(b"sh")),
    ];
    assert_eq!(found, told);
    let told: Vec<_> =
        found.iter().filter_map(|record| record.err()).map(|error| format!("{error}")).collect();
    assert_eq!(told, ["number 99 is unknown", "number 10 is unknown", "number 7 is malformed"]);
    assert_eq!(format!("{}", RecordError::CutOff), "their end is cut off");
    // A length beyond the end, and beyond all memory.
    for len in [2_u32, u32::MAX] {
        let bytes = [&1_u32.to_le_bytes()[..], &len.to_le_bytes(), b"x"].concat();
        assert_eq!(only(&bytes), Err(RecordError::CutOff));
    }
}

#[test]
fn a_nul_in_a_word_is_where_it_ends() {
    let kind = Kind::Own(FileSystem::Proc, Settings::default());
    let mount = Mount { path: &b"/a\0b"[..], source: b"\0", kind, flags: 0 };
    let mut bytes = Vec::new();
    Record::Mount(mount).encode(&mut bytes);
    assert_eq!(only(&bytes), Ok(Record::Mount(Mount { path: b"/a", ..mount })));
}

#[test]
fn records_are_about_a_process_a_container_or_the_sandbox() {
    let ignored = ignored();
    let of = |scope| {
        let samples = samples(&ignored).into_iter().filter(|(record, _)| record.scope() == scope);
        let mut numbers: Vec<_> = samples.map(|(record, _)| record.number()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    };
    assert_eq!(of(Scope::Process), [1, 2, 3, 5, 7, 8, 9, 11, 13, 17, 21, 23]);
    assert_eq!(of(Scope::Container), [4, 12, 14, 15, 16, 24, 25, 28, 29, 34]);
    assert_eq!(of(Scope::Sandbox), [18, 19, 20, 22, 26, 30, 31, 32, 33, 37, 38, 39, 40]);
    assert!(Scope::Process < Scope::Container && Scope::Container < Scope::Sandbox);
}
