//! Homes that earlier versions wrote. Their bytes are never changed: what lies on disks is read by later versions.

use std::ops::Range;

use crate::disk::SwapHome;
use crate::home::Home;
use crate::io::Device;
use crate::packing::{Codec, Packing};
use crate::page::{PAGE_BYTES, PageId};
use crate::testing::{Faulty, Handle, Memory, home};

/// Pages of the working set, and of the rest: two partitions, and three.
const WORKING: Range<PageId> = 2..20;
const REST: Range<PageId> = 30..33;
/// A page of one word.
const WORD: PageId = 25;
const PAGES: PageId = 40;

fn packing() -> Packing {
    Packing { codec: Codec::Style(codec::Style::DeflateCanned), ..Packing::default() }
}

/// A number again and again, and now and then a name.
fn memory() -> Memory {
    let mut memory = Memory::new(PAGES as usize);
    for id in WORKING.chain(REST) {
        let words = memory.0[id as usize].0.as_chunks_mut::<8>().0;
        for (at, word) in words.iter_mut().enumerate() {
            *word = if at.is_multiple_of(100) { *b"dormouse" } else { u64::from(id).to_le_bytes() };
        }
    }
    memory.set(WORD, 3);
    memory
}

/// The tables that version 2 wrote. Behind them, `PACKED`: its packed file by its pages, without the zeros behind each.
const TABLES: &str = "\
     444f524d484f4d45020000000300000000000000010000000000000000000000000000000000000000000000000000000000 \
     0000000000000000000000000000000000000000000000000000000000000000000000000000000000008f00000000000000 \
     00031000050033000000000012000000eddd0360de471806f0ac3667dbb66ddb423267df962cb36ddbb66ddbb66d9bd996ff \
     eda61b6e5baff87dc5d5d75fdfe7e9db860a02480001020100050032000100000003000000ed9d0360e3501cc67bb6ad6d67 \
     dbb66dbb3df772d75ecfb66d6bb66ddbb66dbbdbbaad53870e1dbed7262f4e7e79df977f042c002c002c0002000000120000 \
     000000000004010000190000000100000000000000010100001e00000003000000000010000401000036fae379052318da8f \
     b7cfbfbc6e341c1873d4fd2baa2f5e0c5a7b363f8380959b9e6074a8479bd722d34cb2110ab711b51757f086ceac53fbf7fe \
     20c82e05836c33e5625fea1ec1efde51ebdc07aa4815acf50d190000003f74df7d2c6da6dafea83495";

const PACKED: [&str; 2] = [
    "\
     f5b5a6c65a4b7343bbbab687939f3ffaf5430ef8d37efd900b7efd307ffe1cbffd2137fce5f647e85ffbea7e273f7ff4eb87 \
     1cf0a7fdfa2117fcfa61fefc397efb436ef8cbed8fd0bf0ed5fd4e7efee8d70f39e04ffbf5432ef8f5c3fcf973fcf687dcf0 \
     97db1fa17f1dabfb9dfcfcd1af1f72c09ff6eb875cf0eb87f9f3e7f8ed0fb9e12fb73f42ff3a55f73bf9f9a35f3fe4803fed \
     d70fb9e0d70ff3e7cff1db1f72c35f6e7f84fe75aeee77f2f347bf7ec8017fdaaf1f72c1af1fe6cf9fe3b73fe486bfdcfe08 \
     fdeb52ddefe4e78f7efd9003feb45f3fe4825f3fcc9f3fc76f7fc80d7fb9fd11fad7b5badfc9cf1ffdfa2107fc69bf7ec805 \
     bf7e983f7f8edffe901bfe72fb23f4af5b75bf939f3ffaf5430ef8d37efd900b7efd307ffe1cbffd2137fce5f647e85ff7ea \
     7e273f7ff4eb871cf0a7fdfa2117fcfa61fefc397efb436ef8cbed8fd0bf1ed5fd4e7efee8d70f39e04ffbf5432ef8f5c3fc \
     f973fcf687dcf097db1fa17f3dabfb9dfcfcd1af1f72c09ff6eb875cf0eb87f9f3e7f8ed0fb9e12fb73f42ff7a55f73bf9f9 \
     a35f3fe4803fedd70fb9e0d70ff3e7cff1db1f72c35f6e7f84fef5aeee77f2f347bf7ec8017fdaaf1f72c1af1fe6cf9fe3b7 \
     3fe486bfdcfe08fdeb53ddefe4e78f7efd9003feb45f3fe4825f3fcc9f3fc76f7fc80d7fb9fd11fad7b7badfc9cf1ffdfa21 \
     07fc69bf7ec805bf7e983f7f8edffe901bfe72fba315f5b5a6c65a4b7343bfbab687939f3ffaf5430ef8d37efd900b7efd30 \
     7ffe1cbffd2137fce5f647e85fffea7e273f7ff4eb871cf0a7fdfa2117fcfa61fefc397efb436ef8cbed8f56",
    "\
     6482462518740a1f899590831ffc6c7ef8033a003f677ef803ba003ffc81f2073f37fc881fd00df879173f98648246251874 \
     0a3f899590831ffc6c7ef8033a003f677ef803ba003ffc81f2073f37fc881fd00df879173f986482462518748a0089959083 \
     1ffc6c7ef8033a003f677ef803ba003ffc81f2073f37fc881fd00df879173f98",
];

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

#[test]
fn a_home_of_version_2_is_opened() {
    let tables = bytes(TABLES);
    assert_eq!(tables[8], 2);
    let files = [Faulty::good(), Faulty::good(), Faulty::good()];
    for page in PACKED {
        let mut page = bytes(page);
        page.resize(PAGE_BYTES, 0);
        files[2].bytes.lock().unwrap().extend(page);
    }
    let devices = files.map(|file| Box::new(Handle(file)) as Box<dyn Device>);
    let home = SwapHome::reopen(devices, packing(), &tables, PAGES, u64::MAX).unwrap();
    let mut fetched = Memory::new(PAGES as usize);
    home.fetch(&fetched.pages(WORKING.chain(REST).chain([WORD]))).unwrap();
    assert!(memory().0.iter().zip(&fetched.0).all(|(a, b)| a.0 == b.0));
    assert!(home.fetch(&fetched.pages([0])).is_err());
    // It is written down as homes are today.
    let mut again = Vec::new();
    home.persist(&mut again).unwrap();
    assert_eq!(again[8], 3);
}

#[test]
#[ignore = "for a new version of the format"]
fn print_a_home() {
    let files = [Faulty::good(), Faulty::good(), Faulty::good()];
    let mut home = home(&files[0], &files[1]).with_packing(Box::new(Handle(files[2].clone())), packing());
    let mut memory = memory();
    let (set, rest) = (memory.pages(WORKING.chain([WORD])), memory.pages(REST));
    home.store(&set, &rest).unwrap();
    let packed = home.pack(&|| true).unwrap().unwrap();
    assert!(home.adopt(packed, true));
    let mut tables = Vec::new();
    home.persist(&mut tables).unwrap();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    println!("TABLES {}", hex(&tables));
    println!("PACKED {}", hex(&files[2].bytes.lock().unwrap()));
}
