//! The log file that callers name with `--log`, with errors and remarks for them to read.

use std::io::Write;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use runtime::units::date;
use serde_json::json;

use crate::choices::LogFormat;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Error,
    Warning,
    Info,
}

#[derive(Debug)]
struct Log {
    path: Option<PathBuf>,
    format: LogFormat,
    /// To standard error as well.
    loudest: Level,
}

static LOG: OnceLock<Log> = OnceLock::new();

/// Sets where the log goes. `debug`: remarks go to standard error as well, if there is no file. The error says that the file
/// cannot be written; there is none then.
pub fn open(path: Option<PathBuf>, format: LogFormat, debug: bool) -> Result<(), String> {
    // Absolute, since the working directory may change.
    let path = path.map(|path| std::path::absolute(&path).unwrap_or(path));
    let loudest = if debug || level_of_sandboxes() >= 2 { Level::Info } else { Level::Warning };
    let tried = path.as_ref().map_or(Ok(()), |path| {
        append(path, "").map_err(|error| {
            format!("cannot write log file {}: {error}; pass a writable --log", path.display())
        })
    });
    let _ = LOG.set(Log { path: path.filter(|_| tried.is_ok()), format, loudest });
    tried
}

/// The level at which sandboxes log, by `DORMOUSE_LOG`: error, warn, info or debug; errors alone by default.
pub fn level_of_sandboxes() -> u32 {
    match std::env::var("DORMOUSE_LOG").as_deref() {
        Ok("warn") => 1,
        Ok("info") => 2,
        Ok("debug") => 3,
        _ => 0,
    }
}

/// Writes a line: errors to standard error and to the file, the rest to the file or else to standard error.
pub fn write(level: Level, text: &str) {
    let Some(log) = LOG.get() else { return };
    let in_file = log.path.as_ref().is_some_and(|path| append(path, &line(log.format, level, text)).is_ok());
    if level == Level::Error || (!in_file && level <= log.loudest) {
        // Standard error may be closed; that is no reason to panic.
        let _ = writeln!(std::io::stderr(), "dormouse: {text}");
    }
}

fn append(path: &PathBuf, line: &str) -> std::io::Result<()> {
    let file = std::fs::File::options().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(line.as_bytes()))
}

/// A line in the format that shims know from other runtimes.
fn line(format: LogFormat, level: Level, text: &str) -> String {
    let level = match level {
        Level::Error => "error",
        Level::Warning => "warning",
        Level::Info => "info",
    };
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let time = date(since.as_secs());
    match format {
        LogFormat::Json => format!("{}\n", json!({"level": level, "msg": text, "time": time})),
        LogFormat::Text => format!("time={time:?} level={level} msg={text:?}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_what_shims_read() {
        let text = line(LogFormat::Json, Level::Error, "a \"b\"");
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((value["level"].as_str(), value["msg"].as_str()), (Some("error"), Some("a \"b\"")));
        assert!(line(LogFormat::Text, Level::Info, "x").contains("level=info msg=\"x\""));
    }
}
