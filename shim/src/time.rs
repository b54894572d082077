//! Points in time, as messages have them.

use std::time::{SystemTime, UNIX_EPOCH};

use containerd_shim_protos::protobuf::well_known_types::timestamp::Timestamp;

#[must_use]
pub fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    let nanos = i32::try_from(since.subsec_nanos()).unwrap_or(0);
    Timestamp { seconds, nanos, ..Timestamp::default() }
}
