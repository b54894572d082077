//! The interface to a runtime that a gateway needs.

use std::future::Future;

use crate::config::FunctionConfig;

/// The reason why something could not be done, as the end of a sentence.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BackendError(pub String);

/// Runs functions. The gateway calls at most one of `start`, `sleep`, `wake` and `stop` of a container at a time.
pub trait Backend: Send + Sync + 'static {
    /// A function that was started.
    type Container: Send + Sync + 'static;

    /// Without sleep functions are stopped instead.
    const CAN_SLEEP: bool;

    /// Starts a function's command. It need not listen yet. `id` is this start's alone. After an error nothing is left of it.
    fn start(
        &self,
        function: &FunctionConfig,
        id: &str,
    ) -> impl Future<Output = Result<Self::Container, BackendError>> + Send;

    /// Puts a container to sleep. It keeps its sockets, and a request to it waits or wakes it. After an error it is awake.
    fn sleep(&self, container: &Self::Container) -> impl Future<Output = Result<(), BackendError>> + Send;

    /// Does all that is needed for a request to reach a sleeper: nothing where the request itself wakes it.
    ///
    /// # Errors
    /// When it stays asleep.
    fn wake(&self, container: &Self::Container) -> Result<(), BackendError>;

    /// Ends a container, if it has not ended, and removes what is left of it.
    fn stop(&self, container: &Self::Container) -> impl Future<Output = ()> + Send;

    /// Waits for its end, from whatever cause.
    fn ended(&self, container: &Self::Container) -> impl Future<Output = ()> + Send;

    /// The memory that a container uses, in bytes; `None` if that cannot be known, such as after its end.
    fn memory_bytes(&self, container: &Self::Container) -> Option<u64>;
}
