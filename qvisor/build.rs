//! Builds the kernel and the stub for their own target and leaves both in `OUT_DIR`, for `include_bytes!`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const TARGET: &str = "x86_64-unknown-none";

fn main() {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets this"));
    let root = manifest.parent().expect("the crate lies in the workspace").to_owned();
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets this"));
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    for source in
        ["qkernel", "allocator", "Cargo.toml", "qvisor/stub/src", "qvisor/stub/stub.ld", "qvisor/build.rs"]
    {
        println!("cargo:rerun-if-changed={}", root.join(source).display());
    }

    let kernel = target.join("kernel");
    build(
        cargo(&root, &kernel, "")
            .args(["-p", "qkernel", "--bin", "qkernel", "--features", "kernel"])
            // The target's own `core` is compiled for another code model, which link-time optimisation refuses.
            .env("CARGO_PROFILE_RELEASE_LTO", "off"),
    );
    embed(&kernel.join(TARGET).join("release/qkernel"), &out.join("kernel.elf"));

    let stub = target.join("stub");
    let script = manifest.join("stub/stub.ld");
    let flags =
        format!(" -C link-arg=-T{} -C link-arg=--no-pie -C link-arg=--build-id=none", script.display());
    build(&mut cargo(&manifest.join("stub"), &stub, &flags));
    embed(&stub.join(TARGET).join("release/stub"), &out.join("stub.elf"));
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

/// Copies what is loaded of an ELF file: headers and segments, without sections and debug information behind them.
fn embed(from: &Path, to: &Path) {
    let mut bytes = fs::read(from).unwrap_or_else(|e| panic!("cannot read {}: {e}", from.display()));
    let word = |at: usize, len: usize| -> usize {
        let mut wide = [0; 8];
        wide[..len].copy_from_slice(&bytes[at..at + len]);
        usize::try_from(u64::from_le_bytes(wide)).expect("a 64-bit host")
    };
    let (headers, size, count) = (word(32, 8), word(54, 2), word(56, 2));
    let mut end = headers + size * count;
    for header in (headers..).step_by(size).take(count) {
        end = end.max(word(header + 8, 8) + word(header + 32, 8));
    }
    bytes.truncate(end);
    bytes[40..48].fill(0); // e_shoff
    bytes[58..64].fill(0); // e_shentsize, e_shnum, e_shstrndx
    fs::write(to, bytes).unwrap_or_else(|e| panic!("cannot write {}: {e}", to.display()));
}
