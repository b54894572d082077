//! Exchange with containerd on `start`: the input that it writes to a shim's standard input, and the answer that it
//! expects.
//!
//! Before 2.3 it writes the runtime options, if there are any, and reads the address of the socket. Since then it
//! writes `containerd.runtime.bootstrap.v1.BootstrapParams` and reads a `BootstrapResult`. Options can be taken for
//! parameters, so these have to repeat the ID and namespace of the command line, as containerd's own shim asks.

use std::path::PathBuf;

use crate::fields::{self, Value};
use crate::options::Options;

/// The version of the task API that the shim serves.
const TASK_API: u64 = 2;

/// Which containerd it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Before 2.3.
    Options,
    Parameters,
}

/// The input that containerd gives to `start`, in either form.
#[derive(Debug, PartialEq, Eq)]
pub struct Bootstrap {
    pub form: Form,
    pub options: Options,
    /// Where the socket is to lie.
    pub socket_dir: Option<PathBuf>,
}

impl Bootstrap {
    pub fn read(input: &[u8], id: &str, namespace: &str) -> Result<Self, String> {
        Self::parameters(input, id, namespace).map_or_else(|| Self::options(input), Ok)
    }

    fn parameters(input: &[u8], id: &str, namespace: &str) -> Option<Self> {
        let message = fields::read(input).ok()?;
        if fields::text(&message, 1) != id || fields::text(&message, 2) != namespace {
            return None;
        }
        let extensions = message.iter().filter_map(|field| match field {
            (8, Value::Bytes(extension)) => fields::read(extension).ok().map(|one| fields::bytes(&one, 1)),
            _ => None,
        });
        let options = extensions.filter_map(|any| Options::of_any(&any).ok().flatten()).next();
        let socket_dir = Some(fields::text(&message, 9)).filter(|dir| !dir.is_empty());
        Some(Self {
            form: Form::Parameters,
            options: options.unwrap_or_default(),
            socket_dir: socket_dir.map(Into::into),
        })
    }

    fn options(input: &[u8]) -> Result<Self, String> {
        let options = Options::of_any(input)?.unwrap_or_default();
        Ok(Self { form: Form::Options, options, socket_dir: None })
    }
}

/// The answer for standard output: where the shim listens.
#[must_use]
pub fn answer(form: Form, address: &str) -> Vec<u8> {
    match form {
        Form::Options => address.into(),
        Form::Parameters => fields::write(&[
            (1, Value::Number(TASK_API)),
            (2, Value::Bytes(address.into())),
            (3, Value::Bytes(b"ttrpc".to_vec())),
        ]),
    }
}

/// The answer to `-info`: `containerd.types.RuntimeInfo`.
#[must_use]
pub fn info(name: &str, version: &str) -> Vec<u8> {
    let version = fields::write(&[(1, Value::Bytes(version.into()))]);
    fields::write(&[(1, Value::Bytes(name.into())), (2, Value::Bytes(version))])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(number: u32, text: &str) -> fields::Field {
        (number, Value::Bytes(text.into()))
    }

    fn any() -> Vec<u8> {
        let options = fields::write(&[text(2, "/etc/dormouse.toml")]);
        fields::write(&[text(1, "runtimeoptions.v1.Options"), (2, Value::Bytes(options))])
    }

    #[test]
    fn older_ones_write_options_or_nothing() {
        let none = Bootstrap::read(b"", "a", "default").unwrap();
        assert_eq!((none.form, none.options), (Form::Options, Options::default()));
        let some = Bootstrap::read(&any(), "a", "default").unwrap();
        assert_eq!((some.form, some.options.config), (Form::Options, Some("/etc/dormouse.toml".into())));
        assert_eq!(answer(Form::Options, "unix:///run/s"), b"unix:///run/s");
    }

    #[test]
    fn newer_ones_write_parameters() {
        let extension = fields::write(&[(1, Value::Bytes(any()))]);
        let parameters =
            [text(1, "a"), text(2, "default"), (3, Value::Number(u64::MAX - 3)), text(4, "v2.4.2")];
        let more = [(8, Value::Bytes(extension)), text(9, "/run/s")];
        let input = fields::write(&[&parameters[..], &more[..]].concat());
        let read = Bootstrap::read(&input, "a", "default").unwrap();
        assert_eq!((read.form, read.socket_dir), (Form::Parameters, Some("/run/s".into())));
        assert_eq!(read.options.config, Some("/etc/dormouse.toml".into()));
        let result = fields::read(&answer(Form::Parameters, "unix:///run/s/x")).unwrap();
        assert_eq!(
            (fields::text(&result, 2), fields::text(&result, 3)),
            ("unix:///run/s/x".into(), "ttrpc".into())
        );
        assert_eq!(result.first(), Some(&(1, Value::Number(2))));
    }

    #[test]
    fn what_is_neither_is_refused() {
        assert!(Bootstrap::read(b"\x0a\xff", "a", "default").is_err());
    }
}
