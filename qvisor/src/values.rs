//! Parsers of options' values.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use vmm::mounts::Volume;

#[derive(Clone)]
pub struct OsParser<T>(pub fn(&OsStr) -> Result<T, String>);

impl<T: Clone + Send + Sync + 'static> clap::builder::TypedValueParser for OsParser<T> {
    type Value = T;

    fn parse_ref(
        &self,
        command: &clap::Command,
        _arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<T, clap::Error> {
        (self.0)(value).map_err(|message| {
            clap::Error::raw(clap::error::ErrorKind::ValueValidation, format!("{message}\n"))
                .with_cmd(command)
        })
    }
}

pub fn env_pair(text: &OsStr) -> Result<OsString, String> {
    match text.as_bytes().iter().position(|b| *b == b'=') {
        Some(1..) => Ok(text.to_owned()),
        _ => Err(format!("--env {}: expected NAME=value", text.display())),
    }
}

/// `NAME=value`, or a name alone.
pub fn env_word(text: &OsStr) -> Result<OsString, String> {
    match text.as_bytes().first() {
        None | Some(b'=') => Err(format!("--env {}: expected NAME=value, or a NAME", text.display())),
        Some(_) => Ok(text.to_owned()),
    }
}

pub fn volume(text: &OsStr) -> Result<Volume, String> {
    let bad = |why| format!("--volume {}: {why}; expected SRC:/DST or SRC:/DST:ro", text.display());
    let mut parts = text.as_bytes().split(|b| *b == b':');
    let path = |bytes: &[u8]| PathBuf::from(OsString::from_vec(bytes.to_vec()));
    let (source, target) = (path(parts.next().unwrap_or_default()), path(parts.next().unwrap_or_default()));
    let read_only = match parts.next() {
        None | Some(b"rw") => false,
        Some(b"ro") => true,
        Some(_) => return Err(bad("an unknown option")),
    };
    let walks_up = target.components().any(|part| part == std::path::Component::ParentDir);
    if parts.next().is_some() || source.as_os_str().is_empty() {
        return Err(bad("not a source and a target"));
    }
    if !target.is_absolute() || walks_up || target.parent().is_none() {
        return Err(bad("the target is not an absolute path below /"));
    }
    let source = std::path::absolute(&source).map_err(|_| bad("the source has no absolute path"))?;
    // Without doubled or trailing slashes.
    let target = target.components().collect();
    Ok(Volume { source, target, read_only })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes() {
        let good = volume("/src:/dst//deep/:ro".as_ref()).unwrap();
        let expected = Volume { source: "/src".into(), target: "/dst/deep".into(), read_only: true };
        assert_eq!(good, expected);
        assert!(!volume("/a:/b".as_ref()).unwrap().read_only);
        for text in ["", "/a", "/a:", ":/b", "/a:b", "/a:/b:rx", "/a:/b:ro:x", "/a:/b/../c", "/a:/"] {
            assert!(volume(text.as_ref()).is_err(), "{text}");
        }
    }

    #[test]
    fn environment_words() {
        for good in ["A=", "A=b=c", "A"] {
            assert_eq!(env_word(good.as_ref()).unwrap(), good);
        }
        for bad in ["", "=", "=x"] {
            assert!(env_word(bad.as_ref()).is_err(), "{bad}");
        }
    }
}
