//! Private mappings of files: the sandbox's own copies, as far as its memory reaches.

mod sleeper;

use std::fs;
use std::io::Write;

use sleeper::Place;

/// Larger than the sandbox's memory, and each page another one.
const PAGES: u32 = 40_000;

#[test]
fn a_file_larger_than_memory_is_mapped_and_changed_privately() {
    let mut place = Place::new();
    let volume = place.dir.join("volume");
    fs::create_dir(&volume).unwrap();
    let mut file = std::io::BufWriter::new(fs::File::create(volume.join("big")).unwrap());
    let mut page = [0x5a; 4096];
    for number in 0..PAGES {
        page[..4].copy_from_slice(&number.to_le_bytes());
        file.write_all(&page).unwrap();
    }
    file.into_inner().unwrap().sync_all().unwrap();
    let program = "
import mmap, os
file = os.open('/v/big', os.O_RDONLY)
size = os.fstat(file).st_size
m = mmap.mmap(file, size, mmap.MAP_PRIVATE, mmap.PROT_READ)
# A mapping that may be written is promised memory for all of it.
part = size // 2
w = mmap.mmap(file, part, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
print('ready')
for again in range(2):
    for at in range(0, size, 4096):
        assert m[at:at + 4] == (at // 4096).to_bytes(4, 'little'), at
for at in range(0, part, 4096 * 100): w[at:at + 4] = b'mine'
# What is left of its memory is its own to use.
filled = bytearray(60 << 20)
for at in range(0, part, 4096):
    want = b'mine' if at % (4096 * 100) == 0 else (at // 4096).to_bytes(4, 'little')
    assert w[at:at + 4] == want and w[at + 4095] == 0x5a, at
    assert m[at:at + 4] == (at // 4096).to_bytes(4, 'little'), at
os.lseek(file, 0, 0)
assert os.read(file, 4) == bytes(4)
print('ok', len(filled))";
    let options = ["--memory", "128M", "--volume", &format!("{}:/v", volume.display())];
    place.start(&options, &[], &["python3", "-u", "-c", program]);
    place.ends_well();
}
