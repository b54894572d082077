//! The streams of a process, as containerd names them: FIFOs, a file, or a program that keeps the log.
//!
//! The sandbox writes to them itself, so no output is copied. The shim holds the other ends of FIFOs: a reader that
//! goes away, as containerd does when it is restarted, must not end the process by a broken pipe, and the end of
//! standard input comes when containerd says so, not when a client goes.
//!
//! Standard input is copied. Its FIFO is opened once the process is there, as runc's shim does: a client that can write
//! before that may close its input before anybody knows the process whose input is to be closed.

use std::fs::{File, OpenOptions};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use vmm::process;

use crate::child;
use crate::reaper::Reaper;
use crate::thread;

/// Bytes of standard input that are copied at a time.
const BUFFER: usize = 4096;

/// Where a process's streams go, in containerd's words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    pub stdin: String,
    pub stdout: String,
    pub stderr: String,
    pub terminal: bool,
}

/// Ends that the sandbox gets; none: the null device.
#[derive(Debug, Default)]
pub struct Streams {
    pub stdin: Option<OwnedFd>,
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
    pub held: Held,
    pub input: Option<Input>,
}

/// Standard input that is to be copied.
#[derive(Debug)]
pub struct Input {
    fifo: PathBuf,
    /// Where to; none: to a terminal.
    pipe: Option<PipeWriter>,
}

/// Ends that the shim keeps.
#[derive(Debug, Default)]
pub struct Held {
    /// The end of standard input that is written to.
    stdin: Option<OwnedFd>,
    /// Held, not read.
    _readers: Vec<OwnedFd>,
}

impl Held {
    /// Standard input ends once the client's end is closed as well.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Has standard input copied: to where it was meant to go, or to a terminal until `end` is closed.
    pub fn copy(&mut self, input: Input, terminal: Option<(File, PipeReader)>) -> io::Result<()> {
        // Neither waits: the reader is there before the writer.
        let open = |options: &mut OpenOptions| options.custom_flags(libc::O_NONBLOCK).open(&input.fifo);
        let from = open(OpenOptions::new().read(true))?;
        self.stdin = Some(open(OpenOptions::new().write(true))?.into());
        let is_begun = match (input.pipe, terminal) {
            (Some(pipe), _) => {
                // It can be read from once its reader is gone.
                let end = pipe.as_raw_fd();
                thread::start("input", move || feed(from, pipe, end))
            }
            (None, Some((terminal, end))) => {
                thread::start("input", move || feed(from, terminal, end.as_raw_fd()))
            }
            (None, None) => true,
        };
        if is_begun { Ok(()) } else { Err(io::Error::other("no thread can be started")) }
    }
}

/// A name, taken apart.
#[derive(Debug, PartialEq, Eq)]
enum Target {
    Null,
    Fifo(PathBuf),
    File(PathBuf),
    /// With its arguments. `strict`: it has to say that it is ready.
    Program {
        path: PathBuf,
        arguments: Vec<String>,
        strict: bool,
    },
}

impl Streams {
    /// Opens them all. A terminal's output and error are one stream.
    pub fn open(names: &Names, container: &str, namespace: &str, reaper: &Reaper) -> Result<Self, String> {
        let mut streams = Self::default();
        if !names.stdin.is_empty() {
            let mut input = Input { fifo: names.stdin.clone().into(), pipe: None };
            if !names.terminal {
                let (reader, writer) = io::pipe().map_err(|error| format!("cannot make a pipe: {error}"))?;
                (streams.stdin, input.pipe) = (Some(reader.into()), Some(writer));
            }
            streams.input = Some(input);
        }
        let stdout = target(&names.stdout)?;
        if let Target::Program { path, arguments, strict } = &stdout {
            let mut command = Command::new(path);
            command.args(arguments).env_clear();
            command.env("CONTAINER_ID", container).env("CONTAINER_NAMESPACE", namespace);
            let (out, err) = start_logger(command, *strict, reaper)
                .map_err(|error| format!("cannot start logging program {}: {error}", path.display()))?;
            (streams.stdout, streams.stderr) = (Some(out), Some(err));
            return Ok(streams);
        }
        streams.stdout = streams.open_output(&names.stdout, &stdout)?;
        if names.terminal {
            return Ok(streams);
        }
        streams.stderr = match &stdout {
            Target::File(_) => {
                let copy = streams.stdout.as_ref().map(OwnedFd::try_clone).transpose();
                copy.map_err(|error| format!("cannot copy a descriptor: {error}"))?
            }
            _ => streams.open_output(&names.stderr, &target(&names.stderr)?)?,
        };
        Ok(streams)
    }

    fn open_output(&mut self, name: &str, target: &Target) -> Result<Option<OwnedFd>, String> {
        let cannot = |error| format!("cannot open {name}: {error}");
        match target {
            Target::Null => Ok(None),
            Target::Fifo(path) => {
                let reader = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
                self.held._readers.push(reader.map_err(cannot)?.into());
                let writer = OpenOptions::new().write(true).open(path).map_err(cannot)?;
                Ok(Some(writer.into()))
            }
            Target::File(path) => {
                path.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(cannot)?;
                let file =
                    OpenOptions::new().append(true).create(true).mode(0o644).open(path).map_err(cannot)?;
                Ok(Some(file.into()))
            }
            Target::Program { .. } => Err(cannot(io::ErrorKind::Unsupported.into())),
        }
    }
}

/// Copies until the input is over, or `end` says something.
fn feed(mut from: File, mut to: impl Write, end: RawFd) {
    let mut buffer = [0; BUFFER];
    loop {
        let [_, has_ended] = process::wait_readable([from.as_raw_fd(), end], -1);
        if has_ended {
            return;
        }
        match from.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(got @ 1..) if to.write_all(buffer.get(..got).unwrap_or_default()).is_ok() => {}
            _ => return,
        }
    }
}

/// Starts a program that reads what the process writes; result: where it is written.
fn start_logger(mut command: Command, strict: bool, reaper: &Reaper) -> io::Result<(OwnedFd, OwnedFd)> {
    let (out_reader, out) = io::pipe()?;
    let (err_reader, err) = io::pipe()?;
    let (mut ready, tell) = io::pipe()?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    child::give(&mut command, vec![out_reader.into(), err_reader.into(), tell.into()]);
    let program = reaper.spawn(&mut command)?;
    // The descriptors go with it.
    drop(command);
    drop(program);
    let told = ready.read(&mut [0])?;
    if strict && told == 0 {
        return Err(io::Error::other("it ended before it was ready"));
    }
    Ok((out.into(), err.into()))
}

fn target(name: &str) -> Result<Target, String> {
    if name.is_empty() {
        return Ok(Target::Null);
    }
    let (scheme, rest) = name.split_once("://").unwrap_or(("fifo", name));
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let path = match scheme {
        // A plain path is taken as it is.
        _ if !name.contains("://") => PathBuf::from(name),
        _ => std::ffi::OsString::from_vec(decode(path, false)).into(),
    };
    match scheme {
        "fifo" => Ok(Target::Fifo(path)),
        "file" => Ok(Target::File(path)),
        "binary" | "binary-v2" => {
            let mut arguments = Vec::new();
            for pair in query.split('&').filter(|pair| !pair.is_empty()) {
                let (key, value) =
                    pair.split_once('=').map_or((pair, None), |(key, value)| (key, Some(value)));
                let text = |text| String::from_utf8_lossy(&decode(text, true)).into_owned();
                arguments.push(text(key));
                arguments.extend(value.map(text));
            }
            Ok(Target::Program { path, arguments, strict: scheme == "binary-v2" })
        }
        other => Err(format!("unknown STDIO scheme {other}")),
    }
}

/// A part of an URL with what is written in hexadecimal decoded, and in a query blanks, too.
fn decode(text: &str, is_query: bool) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, others)) = rest.split_first() {
        let code = others.get(..2).filter(|_| *first == b'%');
        let code = code.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        bytes.push(code.unwrap_or(if is_query && *first == b'+' { b' ' } else { *first }));
        rest = if code.is_some() { others.get(2..).unwrap_or_default() } else { others };
    }
    bytes
}

/// A stream for a program: the descriptor, or the null device.
#[must_use]
pub fn stdio(descriptor: Option<OwnedFd>) -> Stdio {
    descriptor.map_or_else(Stdio::null, |descriptor| File::from(descriptor).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_understood() {
        assert_eq!(target(""), Ok(Target::Null));
        assert_eq!(target("/run/a%20b"), Ok(Target::Fifo("/run/a%20b".into())));
        assert_eq!(target("fifo:///run/a%20b"), Ok(Target::Fifo("/run/a b".into())));
        assert_eq!(target("file:///var/log/x"), Ok(Target::File("/var/log/x".into())));
        let program = |strict| Target::Program {
            path: "/bin/log".into(),
            arguments: vec!["tag".into(), "a b".into(), "-v".into()],
            strict,
        };
        assert_eq!(target("binary:///bin/log?tag=a+b&-v"), Ok(program(false)));
        assert_eq!(target("binary-v2:///bin/log?tag=a%20b&-v"), Ok(program(true)));
        assert!(target("npipe:///x").is_err());
    }
}
