use super::super::sealing::in_memory;
use super::*;

fn bytes_of(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn entries() -> Vec<Head> {
    let long = vec![b'x'; 300];
    vec![
        Head::of_file("plain"),
        Head { path: long.clone(), user: 3_000_000, ..Head::of_file("") },
        Head { kind: Kind::Symlink, link: long, ..Head::of_file("link") },
        Head { kind: Kind::CharacterDevice, device: (1, 3), ..Head::of_file("null") },
        Head {
            kind: Kind::Directory,
            records: vec![(b"SCHILY.xattr.user.a".into(), b"=\n\0".into())],
            ..Head::of_file("directory")
        },
    ]
}

fn written() -> Vec<u8> {
    let mut writer = Writer::new(Vec::new());
    entries().into_iter().for_each(|head| writer.entry(head, b"").unwrap());
    writer.entry(Head::of_file("data"), &[7; 600]).unwrap();
    writer.end().unwrap()
}

#[test]
fn what_was_written_is_read() {
    let bytes = written();
    let mut reader = Reader::new(&bytes[..]);
    for head in entries() {
        assert_eq!(reader.next().unwrap().unwrap(), head);
    }
    assert_eq!(reader.next().unwrap().unwrap().bytes, 600);
    let at = usize::try_from(reader.at()).unwrap();
    assert_eq!(bytes[at..at + 600], [7; 600]);
    assert_eq!(reader.all(600).unwrap(), [7; 600]);
    assert!(reader.next().unwrap().is_none());
}

#[test]
fn sparse_files_come_back_and_the_same_content_gives_the_same_bytes() {
    for (len, places) in [(0, &[][..]), (9000, &[0, 4096, 8999]), (9 << 20, &[]), (9 << 20, &[5, 1 << 20])] {
        let (sparse, whole) = (in_memory().unwrap(), in_memory().unwrap());
        sparse.set_len(len).unwrap();
        whole.write_all_at(&vec![0; usize::try_from(len).unwrap()], 0).unwrap();
        for at in places {
            sparse.write_all_at(b"x", *at).unwrap();
            whole.write_all_at(b"x", *at).unwrap();
        }
        let pack = |file: &File| {
            let mut writer = Writer::new(Vec::new());
            writer.file(Head::of_file("sparse"), file).unwrap();
            writer.end().unwrap()
        };
        let bytes = pack(&sparse);
        assert!(bytes == pack(&whole) && bytes.len() < 24 << 10);
        let mut reader = Reader::new(&bytes[..]);
        let head = reader.next().unwrap().unwrap();
        let back = in_memory().unwrap();
        reader.file(&head, &back, len).unwrap();
        assert!(head.path == b"sparse" && bytes_of(&back) == bytes_of(&sparse));
        let mut reader = Reader::new(&bytes[..]);
        let head = reader.next().unwrap().unwrap();
        assert!(len == 0 || reader.file(&head, &back, len - 1).is_err());
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let bytes = written();
    for len in 0..bytes.len() - 2 * BLOCK {
        let mut reader = Reader::new(&bytes[..len]);
        assert!((0..7).any(|_| reader.next().is_err()), "{len} bytes");
    }
    for at in 0..bytes.len() {
        let mut bytes = bytes.clone();
        bytes[at] ^= 0x80;
        let mut reader = Reader::new(&bytes[..]);
        while let Ok(Some(_)) = reader.next() {}
    }
    for body in [&b"9 a=b\n"[..], b"x a=b\n", b"6 ab=\n1", b"5 ab\n", b"99999999999999999999 a=b\n"] {
        assert!(records(body).is_none(), "{body:?}");
    }
    let sparse = |map: &[u8]| {
        let mut head = Head::of_file("sparse");
        head.records.extend(SPARSE_VERSION.map(|(name, value)| (name.into(), value.into())));
        head.records.push((SPARSE_BYTES.into(), b"100".into()));
        let mut writer = Writer::new(Vec::new());
        writer.entry(head, map).unwrap();
        let bytes = writer.end().unwrap();
        let mut reader = Reader::new(&bytes[..]);
        let head = reader.next().unwrap().unwrap();
        reader.file(&head, &in_memory().unwrap(), 1000).is_err()
    };
    for map in
        [&b"1\n0\n101\n"[..], b"2\n50\n10\n0\n10\n", b"9999999999\n", b"1\n0\n10\n", b"x\n", b"-1\n", b""]
    {
        assert!(sparse(map), "{map:?}");
    }
}
