use std::io::{Read, Write};
use std::os::unix::fs::FileExt;

use testdir::TempDir;
use vmm::sealed_file::UnsealedFile;

use super::keeper::{Keeping, Peers};
use super::*;

const DIGEST: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn sealed(content: &[u8]) -> File {
    let file = UnsealedFile::new(c"test").unwrap();
    file.file().write_all_at(content, 0).unwrap();
    file.seal().unwrap()
}

fn held(of: &HeldOf, index: File) -> Held {
    Held { pages: sealed(&[7; 8192]), table: sealed(b"table"), index, of: of.clone() }
}

/// Runs `body` with a keeper's socket, while a thread answers there.
fn with_keeper(index: File, body: impl FnOnce(&DigestSocket)) {
    let temp = TempDir::new();
    let open = || DigestSocket::of(Directory::open(temp.path()).unwrap(), DIGEST);
    let of = HeldOf { name: "web".into(), digest: DIGEST.into() };
    let lock = open().lock().unwrap().unwrap();
    assert!(open().lock().unwrap().is_none(), "there is one keeper");
    let listener = open().listen().unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let keeping = Keeping::new(open(), lock, &of, &held(&of, index)).unwrap();
    let keeper = thread::spawn(move || {
        let mut peers = Peers::default();
        while !process::has_hung_up(&theirs) {
            peers.serve(&keeping, &listener, 20);
        }
    });
    body(&open());
    drop(ours);
    keeper.join().unwrap();
}

#[test]
fn a_keeper_gives_its_files_to_whoever_asks() {
    with_keeper(sealed(b""), |socket| {
        for _ in 0..3 {
            let held = Held::take(socket).unwrap().expect("it is held");
            assert_eq!((held.name(), held.digest()), ("web", DIGEST));
            assert_eq!((held.pages_bytes().unwrap(), held.index_bytes().unwrap()), (8192, 0));
            let mut table = [0; 5];
            held.table.read_exact_at(&mut table, 0).unwrap();
            assert_eq!(&table, b"table");
            assert!([&held.pages, &held.table, &held.index].iter().all(|file| is_sealed(file)));
        }
    });
}

#[test]
fn who_says_nothing_keeps_nobody_waiting_and_is_sent_away() {
    with_keeper(sealed(b""), |socket| {
        let mut silent: Vec<_> = (0..40).map(|_| socket.connect(PATIENCE).unwrap()).collect();
        // There are more of them than are waited for at once.
        let since = Instant::now();
        while Held::take(socket).map_or(None, |held| held).is_none() {
            assert!(since.elapsed() < Duration::from_secs(20), "they keep others waiting");
        }
        let mut nonsense = socket.connect(PATIENCE).unwrap();
        nonsense.write_all(b"nonsense").unwrap();
        silent.push(nonsense);
        for peer in &mut silent {
            peer.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            // An end, or a reset where something was not read.
            assert!(!matches!(peer.read(&mut [0]), Ok(1..)), "it is answered");
        }
    });
}

#[test]
fn what_is_not_sealed_is_not_taken() {
    with_keeper(File::open("/proc/self/exe").unwrap(), |socket| {
        assert!(Held::take(socket).is_err());
    });
}

#[test]
fn nobody_is_asked_where_no_keeper_is() {
    let temp = TempDir::new();
    let socket = DigestSocket::of(Directory::open(temp.path()).unwrap(), DIGEST);
    assert!(Held::take(&socket).unwrap().is_none());
    // One that was killed.
    drop(socket.listen().unwrap());
    assert!(Held::take(&socket).unwrap().is_none());
    let all = DigestSocket::all_in(&Directory::open(temp.path()).unwrap()).unwrap();
    assert_eq!(all.len(), 1);
    let root = Root::new(temp.path().join("none"));
    assert!(super::all(&root).unwrap().is_empty() && directory_of(&root).unwrap().is_none());
}
