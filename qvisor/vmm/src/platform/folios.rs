//! Large folios of shared memory: where the host gives them, a run of pages that is touched for the first time comes in pieces of
//! 64 KiB, which costs it a fraction of single pages. See `Documentation/admin-guide/mm/transhuge.rst` of Linux (6.14 and later for shared
//! memory of these sizes).

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

/// Bytes of the folios that are asked for.
pub const FOLIO_BYTES: u64 = 64 << 10;

const POLICIES: &str = "/sys/kernel/mm/transparent_hugepage";

/// When the host gives shared memory large folios.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Folios {
    /// Never, or the host knows none of this size.
    Never,
    /// Where they are asked for (`madvise(2)`, `MADV_HUGEPAGE`).
    Asked,
    /// To whoever touches shared memory.
    Always,
}

/// The host's policy. Asked once, which must be before the jail: no path leads there from it.
pub fn policy() -> Folios {
    static POLICY: OnceLock<Folios> = OnceLock::new();
    *POLICY.get_or_init(|| policy_in(Path::new(POLICIES)))
}

fn policy_in(policies: &Path) -> Folios {
    let chosen = |file: &str| {
        let text = fs::read_to_string(policies.join(file)).unwrap_or_default();
        // The choice stands in brackets among all that there are.
        let word = text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
        word.unwrap_or_default().to_owned()
    };
    let mut choice = chosen(&format!("hugepages-{}kB/shmem_enabled", FOLIO_BYTES >> 10));
    if choice == "inherit" {
        choice = chosen("shmem_enabled");
    }
    match choice.as_str() {
        "advise" => Folios::Asked,
        "always" | "within_size" | "force" => Folios::Always,
        _ => Folios::Never,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_is_the_size_s_own_or_the_one_for_all() {
        let top = std::env::temp_dir().join(format!("folios.{}", std::process::id()));
        let of_size = top.join("hugepages-64kB");
        fs::create_dir_all(&of_size).unwrap();
        assert_eq!(policy_in(&top), Folios::Never);
        let rows = [
            ("always inherit within_size advise [never]", "[always] never", Folios::Never),
            ("always inherit within_size [advise] never", "[never]", Folios::Asked),
            ("[always] inherit within_size advise never", "[never]", Folios::Always),
            ("always inherit [within_size] advise never", "[never]", Folios::Always),
            ("always [inherit] within_size advise never", "always within_size [advise] never", Folios::Asked),
            ("always [inherit] within_size advise never", "always within_size advise [never]", Folios::Never),
            ("nonsense", "[always]", Folios::Never),
        ];
        for (own, all, policy) in rows {
            fs::write(of_size.join("shmem_enabled"), own).unwrap();
            fs::write(top.join("shmem_enabled"), all).unwrap();
            assert_eq!(policy_in(&top), policy, "{own}; {all}");
        }
        fs::remove_dir_all(&top).unwrap();
    }
}
