//! Bundles: any `config.json`, from its text to a checked container. It never panics, and says what is wrong in a sentence.
//!
//! An input that begins with `{` is the text. Another one has lines of a place in the default configuration and what to put
//! there, as `/process/args=["sh"]`.
#![no_main]

use std::path::Path;

use abi::records::decode;
use libfuzzer_sys::fuzz_target;
use runtime::oci::{self, spec};
use serde_json::Value;

/// Sets a member or an element, where there is one to be set.
fn put(config: &mut Value, place: &str, value: Value) {
    let Some((parent, name)) = place.rsplit_once('/') else { return };
    match config.pointer_mut(parent) {
        Some(Value::Object(members)) => drop(members.insert(name.to_owned(), value)),
        Some(Value::Array(elements)) => match name.parse::<usize>() {
            Ok(at) if at < elements.len() => elements[at] = value,
            _ if elements.len() < 64 => elements.push(value),
            _ => {}
        },
        _ => {}
    }
}

fn changed(input: &[u8]) -> Vec<u8> {
    let mut config: Value = serde_json::from_str(spec::DEFAULT).expect("the default configuration is JSON");
    put(&mut config, "/root/path", "/".into());
    for line in String::from_utf8_lossy(input).lines() {
        let Some((place, value)) = line.split_once('=') else { continue };
        put(&mut config, place, serde_json::from_str(value).unwrap_or_else(|_| value.into()));
    }
    config.to_string().into_bytes()
}

fuzz_target!(|input: &[u8]| {
    let text = if input.starts_with(b"{") { input.to_vec() } else { changed(input) };
    match oci::check(Path::new("/").to_owned(), &text) {
        Ok(container) => {
            let records = container.boot.container_records();
            assert!(decode(&records).all(|record| record.is_ok()));
        }
        Err(error) => {
            let text = error.to_string();
            assert!(text.starts_with("cannot ") && text.contains("; "), "{text}");
        }
    }
});
