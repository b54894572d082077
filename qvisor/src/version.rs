//! `dormouse --version`: the version, the commit, the kernel that sandboxes run, and the platform that is chosen here.

use vmm::image::KERNEL_DIGEST;
use vmm::platform::probe;

/// Digits of the image's SHA-256 that name the kernel.
const NAME_DIGITS: usize = 12;

/// Several lines, of which the first is what `-V` says.
pub fn words() -> String {
    let kernel = &KERNEL_DIGEST[..NAME_DIGITS];
    let report = probe::report();
    let platform = runtime::platform::automatic(&report);
    let (version, commit) = (env!("CARGO_PKG_VERSION"), env!("DORMOUSE_COMMIT"));
    format!(
        "{version}\ncommit: {commit}\nkernel: {kernel}\nplatform: {platform} ({report})\nspec: {}",
        runtime::state::OCI_VERSION
    )
}
