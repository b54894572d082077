//! `hooks`, checked.

use oci_spec::runtime::Hooks;

use super::error::BundleError;

/// Checks as much as can be known before a hook runs.
pub(super) fn check(hooks: Hooks) -> Result<Hooks, BundleError> {
    let lists = [
        hooks.prestart(),
        hooks.create_runtime(),
        hooks.create_container(),
        hooks.start_container(),
        hooks.poststart(),
        hooks.poststop(),
    ];
    for hook in lists.into_iter().flatten().flatten() {
        let path = hook.path();
        if !path.is_absolute() {
            return Err(BundleError::invalid(
                "the path of a hook",
                path.display(),
                "which is no absolute path",
            ));
        }
        if let Some(timeout) = hook.timeout().filter(|timeout| *timeout <= 0) {
            return Err(BundleError::invalid("the timeout of a hook", timeout, "and it must be above 0"));
        }
    }
    Ok(hooks)
}
