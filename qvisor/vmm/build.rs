//! Builds the kernel and the stub for their own target and leaves both in `OUT_DIR`, for `include_bytes!`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use abi::layout::{KERNEL_IMAGE_PHYS, LINEAR_BASE_SYSTRAP};
use sha2::{Digest, Sha256};

const TARGET: &str = "x86_64-unknown-none";

fn main() {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets this"));
    let qvisor = manifest.parent().expect("the crate lies in qvisor").to_owned();
    let root = qvisor.parent().expect("qvisor lies in the workspace").to_owned();
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets this"));
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    for source in [
        "qkernel",
        "allocator",
        "Cargo.toml",
        "qvisor/stub/src",
        "qvisor/stub/stub.ld",
        "qvisor/vmm/build.rs",
    ] {
        println!("cargo:rerun-if-changed={}", root.join(source).display());
    }

    // Kernels with and without checks do not build over each other.
    let (kernel, features) =
        if has_checks() { ("kernel-checks", "kernel,checks") } else { ("kernel", "kernel") };
    let kernel = target.join(kernel);
    // So that functions of all modules are inlined into each other; for debugging a change is to be seen soon.
    let (units, is_incremental) = if has_checks() { ("16", "true") } else { ("1", "false") };
    build(
        cargo(&root, &kernel, "")
            .args(["-p", "qkernel", "--bin", "qkernel", "--features", features])
            // The target's own `core` is compiled for another code model, which link-time optimisation refuses.
            .env("CARGO_PROFILE_RELEASE_LTO", "off")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", units)
            .env("CARGO_PROFILE_RELEASE_INCREMENTAL", is_incremental),
    );
    let mut image = loaded_part(&kernel.join(TARGET).join("release/qkernel"));
    relocate(&mut image, LINEAR_BASE_SYSTRAP + KERNEL_IMAGE_PHYS);
    write(&out.join("kernel.elf"), &image);
    println!("cargo:rustc-env=DORMOUSE_KERNEL_DIGEST={}", hex(&Sha256::digest(&image)));

    let stub = target.join("stub");
    let script = qvisor.join("stub/stub.ld");
    let flags =
        format!(" -C link-arg=-T{} -C link-arg=--no-pie -C link-arg=--build-id=none", script.display());
    build(&mut cargo(&qvisor.join("stub"), &stub, &flags));
    let image = loaded_part(&stub.join(TARGET).join("release/stub"));
    write(&out.join("stub.elf"), &image);
    println!("cargo:rustc-env=DORMOUSE_STUB_DIGEST={}", hex(&Sha256::digest(&image)));
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether the kernel checks the order of its locks: in debug builds, or as `DORMOUSE_KERNEL_CHECKS` says (0 or 1).
fn has_checks() -> bool {
    println!("cargo:rerun-if-env-changed=DORMOUSE_KERNEL_CHECKS");
    match env::var("DORMOUSE_KERNEL_CHECKS").as_deref() {
        Ok("0") => false,
        Ok("1") => true,
        Ok(other) => panic!("DORMOUSE_KERNEL_CHECKS is {other:?}, and should be 0 or 1"),
        Err(_) => env::var("PROFILE").as_deref() == Ok("debug"),
    }
}

/// A `cargo build` that inherits nothing of the build it runs in but the tools.
fn cargo(dir: &Path, target_dir: &Path, flags: &str) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in env::vars_os() {
        let name_text = name.to_string_lossy();
        let kept = ["CARGO_HOME", "CARGO_MAKEFLAGS", "CARGO_NET_OFFLINE", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN"];
        let ours = ["CARGO", "RUST", "DEP_"].iter().any(|p| name_text.starts_with(p));
        let cargos = ["TARGET", "HOST", "PROFILE", "OPT_LEVEL", "DEBUG", "OUT_DIR", "NUM_JOBS"];
        if (ours || cargos.contains(&&*name_text)) && !kept.contains(&&*name_text) {
            command.env_remove(&name);
        }
    }
    command
        .current_dir(dir)
        .args(["build", "--profile", "release", "--target", TARGET, "--target-dir"])
        .arg(target_dir)
        .env("RUSTFLAGS", format!("-C code-model=small -C relocation-model=pic{flags}"));
    command
}

fn build(command: &mut Command) {
    let status = command.status().unwrap_or_else(|e| panic!("cannot run {command:?}: {e}"));
    assert!(status.success(), "{command:?} failed: {status}");
}

/// The part of an ELF file that is loaded: headers and segments, without sections and debug information behind them.
fn loaded_part(from: &Path) -> Vec<u8> {
    let mut bytes = fs::read(from).unwrap_or_else(|e| panic!("cannot read {}: {e}", from.display()));
    let end = program_headers(&bytes).map(|header| header.offset + header.len).max();
    bytes.truncate(end.expect("the linker makes segments"));
    bytes[40..48].fill(0); // e_shoff
    bytes[58..64].fill(0); // e_shentsize, e_shnum, e_shstrndx
    bytes
}

fn write(to: &Path, bytes: &[u8]) {
    fs::write(to, bytes).unwrap_or_else(|e| panic!("cannot write {}: {e}", to.display()));
}

/// Writes the values that the relocations would write for an image whose first byte is loaded at `base`. The
/// relocations stay, for other places.
fn relocate(bytes: &mut [u8], base: u64) {
    const DT_RELA: usize = 7;
    const DT_RELASZ: usize = 8;
    const R_X86_64_RELATIVE: usize = 8;
    let headers: Vec<Header> = program_headers(bytes).collect();
    let loads = || headers.iter().filter(|header| header.kind == PT_LOAD);
    let file_offset = |vaddr: usize| {
        let load = loads().find(|load| (load.vaddr..load.vaddr + load.len).contains(&vaddr));
        load.map(|load| vaddr - load.vaddr + load.offset).expect("relocations are of what the file holds")
    };
    let low = loads().map(|load| load.vaddr).min().expect("the linker makes segments") & !0xfff;
    let dynamic =
        headers.iter().find(|header| header.kind == PT_DYNAMIC).expect("the kernel is position independent");
    let tag = |wanted: usize| {
        let mut entries = (dynamic.offset..dynamic.offset + dynamic.len).step_by(16);
        entries.find(|at| word(bytes, *at, 8) == wanted).map(|at| word(bytes, at + 8, 8))
    };
    let (Some(table), Some(len)) = (tag(DT_RELA), tag(DT_RELASZ)) else { return };
    let table = file_offset(table);
    for entry in (table..table + len).step_by(24) {
        let [place, kind, addend] = [0, 8, 16].map(|field| word(bytes, entry + field, 8));
        assert_eq!(kind, R_X86_64_RELATIVE, "the kernel may have relocations of this kind only");
        let value = base.wrapping_add((addend as u64).wrapping_sub(low as u64));
        let at = file_offset(place);
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
}

const PT_LOAD: usize = 1;
const PT_DYNAMIC: usize = 2;

struct Header {
    kind: usize,
    offset: usize,
    vaddr: usize,
    /// In the file.
    len: usize,
}

fn program_headers(bytes: &[u8]) -> impl Iterator<Item = Header> {
    let (table, size, count) = (word(bytes, 32, 8), word(bytes, 54, 2), word(bytes, 56, 2));
    (table..).step_by(size).take(count).map(|at| Header {
        kind: word(bytes, at, 4),
        offset: word(bytes, at + 8, 8),
        vaddr: word(bytes, at + 16, 8),
        len: word(bytes, at + 32, 8),
    })
}

/// A little-endian number of `len` bytes.
fn word(bytes: &[u8], at: usize, len: usize) -> usize {
    let mut wide = [0; 8];
    wide[..len].copy_from_slice(&bytes[at..at + len]);
    usize::try_from(u64::from_le_bytes(wide)).expect("a 64-bit host")
}
