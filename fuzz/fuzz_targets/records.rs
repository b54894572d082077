//! The records by which the kernel is told of processes and containers. Any bytes are refused in words, or mean the same once they are
//! written again; no request has a record that is not its asker's to make.
#![no_main]

use abi::records::{Record, RecordError, Scope, decode};
use libfuzzer_sys::fuzz_target;
use qkernel::spec::{Spec, SpecError};
use vmm::boot::BootSpec;
use vmm::request::Request;

fuzz_target!(|input: &[u8]| {
    let mut again = Vec::new();
    let mut first_error = None;
    let mut scopes = Vec::new();
    for record in decode(input) {
        match record {
            Ok(record) => {
                let start = again.len();
                record.encode(&mut again);
                assert!(decode(&again[start..]).eq([Ok(record)]));
                scopes.push(record.scope());
            }
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    let is_whole = first_error.is_none();
    // Of what is whole nothing is lost.
    assert!(!is_whole || again == input);
    assert_eq!(BootSpec::of_process(input).is_ok(), is_whole && scopes.iter().all(|scope| *scope == Scope::Process));
    for (most, request) in [
        (Scope::Process, Request::for_process(input.to_vec(), Vec::new())),
        (Scope::Container, Request::for_container(input.to_vec(), Vec::new())),
    ] {
        assert!(request.is_err() || is_whole && scopes.iter().all(|scope| *scope <= most));
    }
    // The kernel gives handles back to a host, and there is none.
    let has_handle = |record: Result<Record<'_>, RecordError>| {
        matches!(record, Ok(Record::Stream(_) | Record::Mount(_) | Record::NetTable(_)))
    };
    if !decode(input).any(has_handle) {
        assert_eq!(Spec::parse(input).err(), first_error.map(SpecError::Record));
    }
});
