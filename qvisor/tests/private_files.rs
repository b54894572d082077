//! Private mappings of files: the sandbox's own copies, as far as its memory reaches.

mod sleeper;

use std::fs;
use std::io::Write;

use sleeper::TestSandbox;

/// Larger than the sandbox's memory, and each page another one.
const PAGES: u32 = 40_000;

#[test]
fn a_file_larger_than_memory_is_mapped_and_changed_privately() {
    let mut sandbox = TestSandbox::new();
    let volume = sandbox.dir.join("volume");
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
    sandbox.start(&options, &[], &["python3", "-u", "-c", program]);
    sandbox.ends_well();
}

/// Copies stay after the last mapping of a file, but are never taken for what the file is not any more.
#[test]
fn what_is_kept_of_a_file_is_what_it_is() {
    let mut sandbox = TestSandbox::new();
    let volume = sandbox.dir.join("volume");
    fs::create_dir(&volume).unwrap();
    let lower = sandbox.dir.join("lower");
    fs::write(&lower, [b'a'; 16 * 4096]).unwrap();
    fs::write(volume.join("cut"), [b'a'; 16 * 4096]).unwrap();
    // Only what has not changed just now is kept.
    std::thread::sleep(std::time::Duration::from_millis(1200));
    let program = "
import mmap, os, signal, sys
def shown(path, flags):
    file = os.open(path, os.O_RDONLY)
    with mmap.mmap(file, 0, flags, mmap.PROT_READ) as m: seen = m[:]
    assert seen == os.pread(file, 64 << 20, 0), (path, flags, seen[:3], os.pread(file, 3, 0))
    os.close(file)
    return seen[:3]
def both(path): return {shown(path, flags) for flags in (mmap.MAP_PRIVATE, mmap.MAP_SHARED)}
lower = sys.argv[1]
for again in range(2): assert both(lower) == {b'aaa'} and both('/v/cut') == {b'aaa'}
for new in b'new', b'two':
    file = os.open(lower, os.O_RDWR)
    os.pwrite(file, new, 0)
    os.close(file)
    assert both(lower) == {new}
file = os.open(lower, os.O_RDWR)
with mmap.mmap(file, 0, mmap.MAP_SHARED) as m: m[:3] = b'map'
assert both(lower) == {b'map'}
# What is removed takes no room: less than a third of it would fit.
for number in range(4):
    with open('/tmp/large', 'wb+') as file:
        file.write(bytes(30 << 20))
        file.flush()
        shown('/tmp/large', mmap.MAP_PRIVATE)
    os.unlink('/tmp/large')
print('ready', flush=True)
sys.stdin.readline()
assert os.stat('/v/cut').st_size == 4096
child = os.fork()
if child == 0:
    m = mmap.mmap(os.open('/v/cut', os.O_RDONLY), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ)
    import ctypes
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    at = libc.mmap(None, 16 * 4096, 1, 2, os.open('/v/cut', os.O_RDONLY), 0)
    ctypes.string_at(at, 1)
    ctypes.string_at(at + 2 * 4096, 1)
    os._exit(0)
assert os.waitpid(child, 0)[1] & 127 == signal.SIGBUS
print('ok')";
    let options = ["--disk", "100M", "--volume", &format!("{}:/v", volume.display())];
    sandbox.start(&options, &[], &["python3", "-c", program, lower.to_str().unwrap()]);
    fs::OpenOptions::new().write(true).open(volume.join("cut")).unwrap().set_len(4096).unwrap();
    sandbox.says_line();
    sandbox.ends_well();
}
