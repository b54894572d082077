//! Bytes that earlier versions wrote. They are never changed, only added to: what lies on disks is read by later versions.

use std::sync::Arc;

use codec::{Style, Table, TableSet, Unpacker};

/// The piece that was packed: words that share bytes, a run of zeros, and some text.
fn piece() -> Vec<u8> {
    let words = (0..40_u64).flat_map(|n| (0x7f00_1234_0000 + n * n * 24 + n % 3).to_le_bytes());
    words.chain([0; 90]).chain(*b"the end of it all, and of it").collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

const TABLE: &str = "\
     eddd054013611400e0db401011d129ba81e2a1a2a2a0a2888a81818181850ab376934dd0098a33b0d83030b175c3eeeeeeee \
     0ebabbbbbbde4f77e72dbeddeeddbbee02";

const PACKED: [(Style, &str); 5] = [
    (
        Style::Lz4,
        "\
     9300003412007f00001908001362080013d808002281012000225a0208002260030800229904080022020608002298070800 \
     2261090800225a0b080022800d080022d90f0800226212080022181508002201180800221a1b080022601e080022d9210800 \
     2282250800225829080022612d0800229a310800220036080022993a080022623f0800225844d800228149080022da4e0800 \
     226054080022195a08002202600800221866080022616c080022da72080022807908002259800800226287080022988e0800 \
     0f020047f00d74686520656e64206f6620697420616c6c2c20616e64206f66206974",
    ),
    (
        Style::Zstd(1),
        "\
     28b52ffd0000550500f40600003412007f00001962d881015a02600399040206980761095a0b800dd90f6212181501181a1b \
     601ed92182255829612d9a310036993a623f58448149da4e6054195a02601866616cda72807959806287988e74686520656e \
     64206f6620697420616c6c2c20616e64206f662069742820e0d737c1c0030f3cf0c0030f3cf0c0030f3cf0c0030f3cf0c003 \
     1b78e081071e78e081071e78e081071e78e081071e7860663c8b65e908",
    ),
    (
        Style::DeflateFixed,
        "\
     6360301162a867609084d24950fa06946e6484d0514c103a811942cf6481d04c6c107a063b844ee484aae786d00dbc10fa26 \
     3fd47c21082d210aa1192520b49434d47c39a87a4508dda40aa12334a1e6eb42e85986109ac10c42cfb4829a6f0f55ef02a1 \
     1b3d21f42d3f089d1002a125a32034530284964883d0893950f54510baa11242473640e8a476083da30f42d30e9464a42aa4 \
     e6a528e4a72964962824e6e4e82824c2b800",
    ),
    (
        Style::DeflateDynamic,
        "\
     b5cca10ac2601486e17f5314111106c2a620bfc1206810c460b1582c26832e6dc30d85a1202b26378bcdbc7965ead518dee3 \
     2578cac3818f57a989a5ae4a396220bec4cc40d744af844519cd0ae655f46bb2af63dac07753fa16da2d346c6c77a4df957d \
     0f6f7ddc0ca43fc2e718d5148b99f4e7b25f60b6c4cf0abd353a2e9a1eda11fab1eccf985e709b6270c7fc81ffbb641feaf0 \
     b8d3a7481f12edc7f150fbbff70b",
    ),
    (
        Style::DeflateCanned,
        "\
     18a646c1cc318c866422ed917c124827830c1150280a92c54081384848a078499027053a48a3fc14902a0392a8a0ac1cca2f \
     8fe215400b45504f09e55701ad55414c1d146aa0fc9a285e0be46b838e3a204317a4d1413203a4b2418283e24d419e19a8cf \
     039996a0c00aacbe826bc8c259c606b8091b37e2e20487a38c13d9a5e9",
    ),
];

#[test]
fn what_version_0_1_packed_is_unpacked() {
    let table = Arc::new(Table::from_bytes(&bytes(TABLE)).unwrap());
    for (style, packed) in PACKED {
        let mut out = vec![0; piece().len()];
        Unpacker::new(style, Some(table.clone())).unpack(&bytes(packed), &mut out).unwrap();
        assert_eq!(out, piece(), "{style}");
    }
}

/// Prints what this version packs, for a line of the above.
#[test]
#[ignore = "for a new version of the format"]
fn print_what_is_packed() {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let table = crate::pages::table_of(&[&piece()]);
    println!("TABLE {}", hex(table.to_bytes()));
    for (style, _) in PACKED {
        let mut packer = codec::Packer::new(style, Some(table.clone()));
        println!("{style:?} {}", hex(&crate::pages::pack(&mut packer, &piece())));
    }
}

/// Two parts: words, and then bytes of few values.
fn halves() -> [Vec<u8>; 2] {
    let few = (0..900_u32).map(|n| b"abrd"[(n.wrapping_mul(n * 2_654_435) >> 20) as usize % 4]);
    [piece().repeat(10)[..4096].to_vec(), few.collect()]
}

const TWO_TABLES: [&str; 2] = [
    "\
     ed9d0540135118806f03414444a7e8068a878a8a828a222a06060606162accda904dd0098a33b0d83030b175c3eeeeeeee6e \
     c0a2bbbbf37f7477bd77f1ddbbfbefbf7bf7eefdff7b97",
    "\
     ed5d03805c410cad6ddbb66ddb76a6a99ddab66ddbb66ddbb6edf63af8b3f3fff56ae1963f3b2fc97b49d602",
];

const BY_TWO_TABLES: &str = "\
     1084168db0210806a209a223a290026452812c09a058124895028aa4816c19242f0b14c8019de4917e1a90ae00a4d0818a4a \
     48bf32925701daaa028dd4907e0da0832690d0068a75907e5d24af0714ea039d0d907e43208309a4b280742ed2cf43f25640 \
     8135d05880f4db0145f6c08a0b7c330ec9b130252db9a4399f64f378ea243b238a730de71a2e6be557e87059c31612528ffd \
     1af66bb8369237f3b185c416125b485cf3c7edb5821c63cdb4902901110122106304084c1c81211132000200627613805960 \
     240444d40e8c49305f454022e09bd2578079326d12072a308a90c073732a0c052585d00e0e7f50ab8a3f32600659c98e9059 \
     ea40a823d0084b0e12130ec0a558089d5fc4e04014a198d46ff727e56ff19760951f64288b9d5ce552dca933e4c87272b026 \
     8b36fe2456cd62a3510e7b750525a6c832ed00aedac9761afc3d90e36a36d9d8898699c5768413a65c556052ed7475c71c36 \
     873a513fd314a55460d2f9053b5d6c3da86a3a98d6ae87853174545784d4bd77a813be72142cd331d9b6e8467e4bac339c30 \
     dd00";

#[test]
fn what_several_tables_packed_is_unpacked() {
    let tables = TWO_TABLES.map(|table| Table::from_bytes(&bytes(table)).unwrap()).into();
    let tables = TableSet::new(tables).unwrap();
    let mut out = vec![0; halves().concat().len()];
    let mut unpacker = Unpacker::new(Style::DeflateCanned, Some(tables));
    unpacker.unpack(&bytes(BY_TWO_TABLES), &mut out).unwrap();
    assert_eq!(out, halves().concat());
}

/// Prints what this version packs, for the lines above.
#[test]
#[ignore = "for a new version of the format"]
fn print_what_several_tables_pack() {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let tables = halves().map(|half| crate::pages::table_of(&[&half]));
    tables.iter().for_each(|table| println!("TABLE {}", hex(table.to_bytes())));
    let tables = tables.iter().map(|table| Table::from_bytes(table.to_bytes()).unwrap()).collect();
    let tables = TableSet::new(tables).unwrap();
    let mut packer = codec::Packer::new(Style::DeflateCanned, Some(tables));
    println!("PACKED {}", hex(&crate::pages::pack(&mut packer, &halves().concat())));
}
