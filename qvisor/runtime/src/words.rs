//! Words of errors that containerd's and Docker's code looks for, and that are runc's own.
//!
//! They call the runtime as a program and know its errors by their words alone:
//! - `checkKillError` (containerd 1.6: `pkg/process/utils.go`; 2.4: `cmd/containerd-shim-runc-v2/process/utils.go`) takes "os: process
//!   already finished", "container not running" and "no such process" for a process that has ended, and "does not exist" for a
//!   container that there is not. Anything else is an error, and containerd tries again for ever to stop the pod.
//! - `Init.delete` (the same: `process/init.go`) takes "does not exist" for a container that was deleted before.
//! - `isContainerNotFound`-like checks of Docker (20.10: `libcontainerd/remote/client.go`) look for "container does not exist", "not
//!   found" and "no such container".
//! - `translateContainerdStartErr` of Docker (20.10: `daemon/errors.go`) makes exit code 127 of "executable file not found" and "no such
//!   file or directory", and 126 of "permission denied".
//!
//! `qvisor/tests/oci/words.rs` compares each with runc's.

/// There is no container of this name.
pub const DOES_NOT_EXIST: &str = "container does not exist";
/// There is one already.
pub const EXISTS: &str = "container with given ID already exists";
/// It has ended, or what is asked for needs one that runs.
pub const NOT_RUNNING: &str = "container not running";
/// It was to be resumed.
pub const NOT_PAUSED: &str = "container not paused";
/// It was to be started a second time.
pub const STARTED: &str = "cannot start an already running container";
/// It was to be started after its end.
pub const START_STOPPED: &str = "cannot start a container that has stopped";
/// A process was to come in.
pub const EXEC_IN_STOPPED: &str = "cannot exec in a stopped container";
pub const EXEC_IN_PAUSED: &str = "cannot exec in a paused container (use --ignore-paused to override)";
/// A further container was to begin in it.
pub const NO_POD: &str = "it is the sandbox of one container alone; set pods to shared for all containers of the pod, or \
    to separate (the annotation dev.dormouse.pods, or the node's configuration)";
/// A further container was to begin in a pod, and names another network than the pod's.
pub const NOT_THE_PODS_NETWORK: &str = "its network namespace is not that pod's (or, on the host's network, its IPC namespace); name that in linux.namespaces, as CRI does";
/// A further container was to begin in a pod, and has other ids than the pod's.
pub const NOT_THE_PODS_IDS: &str =
    "its user namespace is not that pod's; give all containers of a pod the same";
