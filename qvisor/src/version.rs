//! `dormouse --version`: the version, the commit, the kernel that sandboxes run, and the platform that is chosen here.

use sha2::{Digest, Sha256};
use vmm::image::KERNEL;
use vmm::platform::probe;

/// Bytes of the image's SHA-256 that name the kernel.
const NAME_BYTES: usize = 6;

/// Several lines, of which the first is what `-V` says.
pub fn words() -> String {
    let kernel: String =
        Sha256::digest(KERNEL).iter().take(NAME_BYTES).map(|byte| format!("{byte:02x}")).collect();
    let report = probe::report();
    let platform = runtime::platform::automatic(&report);
    let (version, commit) = (env!("CARGO_PKG_VERSION"), env!("DORMOUSE_COMMIT"));
    format!(
        "{version}\ncommit: {commit}\nkernel: {kernel}\nplatform: {platform} ({report})\nspec: {}",
        runtime::state::OCI_VERSION
    )
}
