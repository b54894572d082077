//! The shim's command line, in the form of Go's flags, as containerd writes it.

use std::path::PathBuf;

/// The command that containerd gives to the shim, with its options.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Flags {
    pub debug: bool,
    pub version: bool,
    pub info: bool,
    pub namespace: String,
    pub id: String,
    /// containerd's own socket.
    pub address: String,
    /// Of `delete`; otherwise the working directory.
    pub bundle: Option<PathBuf>,
    /// `start`, `delete`, or nothing: serve.
    pub action: String,
}

impl Flags {
    /// Reads `-name value`, `-name=value` and `--name`; the first word that is no flag is the action.
    pub fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut flags = Self::default();
        while let Some(word) = words.next() {
            let Some(name) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else {
                flags.action = word;
                break;
            };
            let (name, given) = match name.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (name, None),
            };
            let is_on = given.as_deref() != Some("false");
            let mut value = || {
                given
                    .clone()
                    .or_else(|| words.next())
                    .ok_or_else(|| format!("flag needs an argument: -{name}"))
            };
            match name {
                "debug" => flags.debug = is_on,
                "v" | "version" => flags.version = is_on,
                "info" => flags.info = is_on,
                "namespace" => flags.namespace = value()?,
                "id" => flags.id = value()?,
                "address" => flags.address = value()?,
                "bundle" => flags.bundle = Some(value()?.into()),
                // Of no use here; the listening socket comes as standard input.
                "socket" | "publish-binary" => drop(value()?),
                _ => return Err(format!("flag provided but not defined: -{name}")),
            }
        }
        Ok(flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Flags, String> {
        Flags::parse(line.split(' ').map(str::to_owned))
    }

    #[test]
    fn containerds_command_lines_are_understood() {
        let flags =
            parse("-namespace k8s.io -address /run/c.sock -publish-binary /usr/bin/c -id a -debug start");
        let expected = Flags {
            debug: true,
            namespace: "k8s.io".into(),
            id: "a".into(),
            address: "/run/c.sock".into(),
            action: "start".into(),
            ..Flags::default()
        };
        assert_eq!(flags, Ok(expected));
        let flags = parse("--namespace=x -id=y -bundle /b delete").unwrap();
        assert_eq!((flags.namespace.as_str(), flags.action.as_str()), ("x", "delete"));
        assert_eq!(flags.bundle, Some("/b".into()));
        assert!(parse("-v").unwrap().version);
    }

    #[test]
    fn unknown_flags_and_missing_values_are_refused() {
        assert!(parse("-nonsense start").is_err());
        assert!(parse("-id").is_err());
    }
}
