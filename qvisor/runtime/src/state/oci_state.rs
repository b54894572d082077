//! The state of a sandbox as other programs read it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::control::Answer;
use crate::status::{SandboxState, Status};

/// Version of the OCI runtime specification that `state` speaks.
pub const OCI_VERSION: &str = "1.2.0";

/// The state that `dormouse state` shows: that of the OCI runtime specification.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct OciState {
    pub oci_version: String,
    pub id: String,
    pub status: Status,
    pub pid: i32,
    pub bundle: PathBuf,
    pub annotations: BTreeMap<String, String>,
    /// Of a sandbox whose first process runs; Dormouse's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_state: Option<SandboxState>,
    /// Why its last hibernation failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hibernate_error: Option<String>,
}

impl OciState {
    /// The state with its VMM's answer added.
    pub(super) fn with(self, answer: Answer) -> Self {
        let Answer { status, sandbox_state, hibernate_error, .. } = answer;
        Self { status: status.unwrap_or(self.status), sandbox_state, hibernate_error, ..self }
    }
}
