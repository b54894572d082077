//! Capabilities in a configuration that are unknown here: newer ones, or none. As the specification asks, they are warned of
//! and left out.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::process;

/// Reads a configuration, or its process alone, which is at the place `process` in it. Result: it, with a sentence for each
/// capability that was left out.
pub(super) fn read<T: DeserializeOwned>(
    text: &[u8],
    process: &str,
) -> Result<(T, Vec<String>), serde_json::Error> {
    // As a rule all are known.
    let error = match serde_json::from_slice(text) {
        Ok(read) => return Ok((read, Vec::new())),
        Err(error) => error,
    };
    let mut remarks = Vec::new();
    let Ok(mut value) = serde_json::from_slice::<Value>(text) else { return Err(error) };
    let sets = value.pointer_mut(&format!("{process}/capabilities")).and_then(Value::as_object_mut);
    for set in sets.into_iter().flat_map(|sets| sets.values_mut()).filter_map(Value::as_array_mut) {
        set.retain(|name| {
            let unknown =
                name.as_str().filter(|name| name.starts_with("CAP_") && process::capability(name).is_err());
            let remark = unknown.map(|name| format!("capability {name} is unknown, and left out"));
            remarks.extend(remark.filter(|remark| !remarks.contains(remark)));
            unknown.is_none()
        });
    }
    // The first error names the line.
    if remarks.is_empty() { Err(error) } else { serde_json::from_value(value).map(|read| (read, remarks)) }
}

#[cfg(test)]
mod tests {
    use oci_spec::runtime::Process;

    use super::*;

    #[test]
    fn unknown_capabilities_are_left_out_and_said() {
        let text = |names: &str| {
            format!(
                r#"{{"user": {{"uid": 0, "gid": 0}}, "cwd": "/", "capabilities": {{"bounding": [{names}], "effective": [{names}]}}}}"#
            )
        };
        let read = |names: &str| read::<Process>(text(names).as_bytes(), "");
        let (process, remarks) = read(r#""CAP_KILL", "CAP_TEST""#).unwrap();
        assert_eq!(remarks, ["capability CAP_TEST is unknown, and left out"]);
        let kept = process.capabilities().clone().unwrap();
        assert_eq!(kept.bounding().as_ref().map(|set| set.len()), Some(1));
        assert!(read(r#""CAP_KILL""#).unwrap().1.is_empty());
        for bad in [r#""KILLER""#, "3", r#""CAP_TEST", {}"#] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
