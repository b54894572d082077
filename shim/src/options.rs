//! The runtime options of containerd's configuration: `runtimeoptions.v1.Options`, whose file is the node's
//! configuration, or those of runc as far as they make sense here.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use containerd_shim_protos::protobuf::Message;
use containerd_shim_protos::shim::oci;
use serde::{Deserialize, Serialize};

use crate::fields;

/// Name of the file in the bundle that holds a configuration given by its content.
const CONFIG: &str = "dormouse.toml";
/// Name of the file in the bundle in which the options lie for `delete`.
const RECORD: &str = "dormouse-options.json";
/// Where state lies unless the options say otherwise, below it a directory for each namespace.
const ROOT: &str = "/run/containerd/dormouse";

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Options {
    /// The `dormouse` to start; none: beside the shim, or on `PATH`.
    pub binary: Option<PathBuf>,
    pub root: Option<PathBuf>,
    /// The node's configuration.
    pub config: Option<PathBuf>,
    /// Its content, if that is what was given.
    pub config_body: Vec<u8>,
    pub systemd_cgroup: bool,
    /// Group that the shim is to lie in.
    pub shim_cgroup: Option<PathBuf>,
}

impl Options {
    /// The options in an `Any`; `None` if it holds nothing, an error if it holds something else.
    pub fn of_any(any: &[u8]) -> Result<Option<Self>, String> {
        let any = fields::read(any).map_err(|error| format!("cannot read the runtime options: {error}"))?;
        Self::read(&fields::text(&any, 1), &fields::bytes(&any, 2))
    }

    /// The options in an `Any` that was taken apart; `None` if it holds nothing, an error if it holds something else.
    pub fn read(type_url: &str, value: &[u8]) -> Result<Option<Self>, String> {
        let broken = |error| format!("cannot read the runtime options {type_url}: {error}");
        let path = |text: String| Some(text).filter(|text| !text.is_empty()).map(PathBuf::from);
        match type_url.rsplit('/').next().unwrap_or_default() {
            "" => Ok(None),
            "runtimeoptions.v1.Options" | "cri.runtimeoptions.v1.Options" => {
                let options = fields::read(value).map_err(broken)?;
                let (config, config_body) = (path(fields::text(&options, 2)), fields::bytes(&options, 3));
                Ok(Some(Self { config, config_body, ..Self::default() }))
            }
            "containerd.runc.v1.Options" => {
                let options = oci::Options::parse_from_bytes(value).map_err(broken)?;
                Ok(Some(Self {
                    binary: path(options.binary_name),
                    root: path(options.root),
                    systemd_cgroup: options.systemd_cgroup,
                    shim_cgroup: path(options.shim_cgroup),
                    ..Self::default()
                }))
            }
            _ => Err(format!(
                "cannot use runtime options of type {type_url}: runtimeoptions.v1.Options and \
                 containerd.runc.v1.Options are known; correct containerd's configuration"
            )),
        }
    }

    /// The directory of the namespace's state.
    #[must_use]
    pub fn state_root(&self, namespace: &str) -> PathBuf {
        self.root.as_deref().unwrap_or(Path::new(ROOT)).join(namespace)
    }

    /// Takes from the bundle what the options have no word for. kubelet with systemd's driver of control groups wants a scope,
    /// but the options of runtimes other than runc cannot say so: the group's path alone does, in the form
    /// `slice:prefix:name`. Control groups of version 1 have no scopes; there such a path stays a path.
    pub fn complete(&mut self, cgroups_path: &str, has_scopes: bool) {
        let mut parts = cgroups_path.split(':');
        let is_scope = parts.next().is_some_and(|slice| slice.ends_with(".slice")) && parts.count() == 2;
        self.systemd_cgroup |= is_scope && has_scopes;
    }

    /// Leaves the options, and a configuration that came as content, in the bundle.
    pub fn write(&mut self, bundle: &Path) -> std::io::Result<()> {
        if self.config.is_none() && !self.config_body.is_empty() {
            let file = bundle.join(CONFIG);
            // One that others could write would be refused.
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600);
            options.open(&file)?.write_all(&self.config_body)?;
            self.config = Some(file);
        }
        self.config_body.clear();
        std::fs::write(bundle.join(RECORD), serde_json::to_vec(self)?)
    }

    /// The options that were left in a bundle; the usual ones if there are none.
    #[must_use]
    pub fn left_in(bundle: &Path) -> Self {
        let read = std::fs::read(bundle.join(RECORD)).ok();
        read.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runcs_options_count_where_they_make_sense() {
        let mut runc = oci::Options::new();
        runc.binary_name = "/opt/dormouse".into();
        runc.root = "/run/state".into();
        runc.systemd_cgroup = true;
        runc.no_new_keyring = true;
        let value = runc.write_to_bytes().unwrap();
        let options = Options::read("containerd.runc.v1.Options", &value).unwrap().unwrap();
        assert_eq!(options.binary, Some("/opt/dormouse".into()));
        assert_eq!(options.state_root("default"), Path::new("/run/state/default"));
        assert!(options.systemd_cgroup);
        assert!(Options::read("some.other.Options", b"").is_err());
        assert!(Options::read("containerd.runc.v1.Options", b"\xff").is_err());
        assert_eq!(Options::read("", b""), Ok(None));
    }

    #[test]
    fn a_scope_is_asked_for_by_its_path() {
        let asks = |path, has_scopes| {
            let mut options = Options::default();
            options.complete(path, has_scopes);
            options.systemd_cgroup
        };
        assert!(asks("kubepods-burstable-pod1.slice:cri-containerd:abc", true));
        assert!(!asks("kubepods-burstable-pod1.slice:cri-containerd:abc", false));
        for path in
            ["", "/kubepods/burstable/pod1/abc", "/a.slice/abc", "a.slice:b", "a:b:c", "a.slice:b:c:d"]
        {
            assert!(!asks(path, true), "{path}");
        }
    }

    #[test]
    fn options_and_content_stay_in_the_bundle() {
        let dir = testdir::TempDir::new();
        let mut options = Options { config_body: b"platform = \"kvm\"\n".to_vec(), ..Options::default() };
        options.write(dir.path()).unwrap();
        let left = Options::left_in(dir.path());
        assert_eq!(left, options);
        assert_eq!(std::fs::read(left.config.unwrap()).unwrap(), b"platform = \"kvm\"\n");
        let empty = testdir::TempDir::new();
        assert_eq!(Options::left_in(empty.path()), Options::default());
    }
}
