# needs: cargo rustc cc
# timeout: 180
. /programs/common.sh
export CARGO_HOME=$WORK/home
cargo -q new --vcs none --name t t && cd t
cat >src/main.rs <<'P'
use std::{collections::BTreeMap, thread};
fn main() {
    let sums: Vec<u64> = (0..8u64).map(|k| thread::spawn(move || (0..100_000u64).map(|i| i * k % 7).sum())).map(|t| t.join().unwrap()).collect();
    let map: BTreeMap<_, _> = sums.iter().enumerate().collect();
    println!("{map:?}");
}
#[test]
fn panics_are_caught() { assert!(std::panic::catch_unwind(|| panic!()).is_err()); }
P
cargo build -q --release --offline && ./target/release/t
cargo test -q --offline 2>&1 | grep -o 'ok. 1 passed'
touch src/main.rs && cargo build --release --offline 2>&1 | grep -c Compiling
