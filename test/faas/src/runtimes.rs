//! The three ways in which a gateway keeps its functions.

use std::fs;
use std::future::Future;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::backend::{Backend, BackendError};
use crate::config::FunctionConfig;
use crate::oci::{Groups, Oci, OciContainer};

/// For all processes of a container to be frozen.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(5);
const FREEZE_POLL: Duration = Duration::from_millis(1);
/// Reclaiming goes on while a turn frees at least so much.
const RECLAIM_STEP_BYTES: u64 = 256 << 10;
const RECLAIM_TURNS: usize = 10;

/// How containers are kept that get no requests.
pub trait Keeping: Send + Sync + 'static {
    /// The value of [`Backend::CAN_SLEEP`].
    const CAN_SLEEP: bool;

    /// Puts a container to sleep, as [`Backend::sleep`] asks.
    fn sleep(oci: &Oci, container: &OciContainer) -> impl Future<Output = Result<(), BackendError>> + Send;

    /// Wakes a container, as [`Backend::wake`] asks.
    ///
    /// # Errors
    /// When it stays asleep.
    fn wake(_container: &OciContainer) -> Result<(), BackendError> {
        Ok(())
    }
}

/// Containers of an OCI runtime.
pub struct Containers<K>(pub Oci, pub K);

impl<K: Keeping> Backend for Containers<K> {
    type Container = OciContainer;
    const CAN_SLEEP: bool = K::CAN_SLEEP;

    async fn start(&self, function: &FunctionConfig, id: &str) -> Result<OciContainer, BackendError> {
        self.0.start(function, id).await
    }

    async fn sleep(&self, container: &OciContainer) -> Result<(), BackendError> {
        K::sleep(&self.0, container).await
    }

    fn wake(&self, container: &OciContainer) -> Result<(), BackendError> {
        K::wake(container)
    }

    async fn stop(&self, container: &OciContainer) {
        // A frozen process of version 1 does not take SIGKILL. One that has ended has no group.
        let _ = K::wake(container);
        self.0.stop(container).await;
    }

    async fn ended(&self, container: &OciContainer) {
        container.ended().await;
    }

    fn memory_bytes(&self, container: &OciContainer) -> Option<u64> {
        container.memory_bytes()
    }
}

/// Sandboxes that hibernate. A request wakes one by itself.
pub struct Dormouse;

impl Keeping for Dormouse {
    const CAN_SLEEP: bool = true;

    async fn sleep(oci: &Oci, container: &OciContainer) -> Result<(), BackendError> {
        oci.call("hibernate", &[&container.id]).await
    }
}

/// Containers that are kept as long as there is room.
pub struct Runc;

impl Keeping for Runc {
    const CAN_SLEEP: bool = false;

    async fn sleep(_oci: &Oci, _container: &OciContainer) -> Result<(), BackendError> {
        Err(BackendError("there is no sleep".to_owned()))
    }
}

/// Containers that are frozen, and whose memory goes to the host's swap space.
pub struct RuncFreeze;

impl Keeping for RuncFreeze {
    const CAN_SLEEP: bool = true;

    async fn sleep(_oci: &Oci, container: &OciContainer) -> Result<(), BackendError> {
        container.groups.set_frozen(true)?;
        let begin = Instant::now();
        while !container.groups.is_frozen() {
            if begin.elapsed() > FREEZE_TIMEOUT {
                container.groups.set_frozen(false)?;
                return Err(BackendError("it does not freeze".to_owned()));
            }
            tokio::time::sleep(FREEZE_POLL).await;
        }
        let groups = container.groups.clone();
        let reclaimed = tokio::task::spawn_blocking(move || groups.reclaim()).await;
        let reclaimed = reclaimed.unwrap_or_else(|error| Err(BackendError(error.to_string())));
        if reclaimed.is_err() {
            container.groups.set_frozen(false)?;
        }
        reclaimed
    }

    fn wake(container: &OciContainer) -> Result<(), BackendError> {
        container.groups.set_frozen(false)
    }
}

impl Groups {
    fn is_version_1(&self) -> bool {
        self.freezer.ends_with("freezer.state")
    }

    fn set_frozen(&self, is_frozen: bool) -> Result<(), BackendError> {
        let text = match (self.is_version_1(), is_frozen) {
            (true, true) => "FROZEN",
            (true, false) => "THAWED",
            (false, true) => "1",
            (false, false) => "0",
        };
        fs::write(&self.freezer, text)
            .map_err(|error| BackendError(format!("{} cannot be written: {error}", self.freezer.display())))
    }

    fn is_frozen(&self) -> bool {
        if self.is_version_1() {
            return fs::read_to_string(&self.freezer).is_ok_and(|text| text.trim() == "FROZEN");
        }
        fs::read_to_string(self.memory.join("cgroup.events"))
            .is_ok_and(|text| text.lines().any(|line| line == "frozen 1"))
    }

    /// Reclaims all that can be.
    fn reclaim(&self) -> Result<(), BackendError> {
        let mut last = u64::MAX;
        for _ in 0..RECLAIM_TURNS {
            let Some(bytes) = self.memory_bytes() else { return Ok(()) };
            if last.saturating_sub(bytes) < RECLAIM_STEP_BYTES {
                return Ok(());
            }
            last = bytes;
            self.reclaim_once(bytes)?;
        }
        Ok(())
    }

    fn reclaim_once(&self, bytes: u64) -> Result<(), BackendError> {
        let ways = [("memory.reclaim", bytes.to_string()), ("memory.force_empty", "0".to_owned())];
        let way =
            ways.iter().map(|(file, text)| (self.memory.join(file), text)).find(|(file, _)| file.exists());
        let Some((file, text)) = way else {
            return Err(BackendError(
                "this kernel reclaims no group's memory: it has neither memory.reclaim nor memory.force_empty".to_owned(),
            ));
        };
        // An error says that not all could be had, as is usual.
        let _ = fs::write(file, text);
        Ok(())
    }
}

/// Why containers cannot be frozen and reclaimed here, as a sentence.
///
/// # Errors
/// When the host has no swap space.
pub fn check_swap(swaps: &Path) -> Result<(), BackendError> {
    let has_one = fs::read_to_string(swaps).is_ok_and(|text| text.lines().count() > 1);
    if has_one {
        Ok(())
    } else {
        Err(BackendError("the host has no swap space to reclaim memory to".to_owned()))
    }
}
