//! A sandbox for who has none: a server's worth of Python, which ends with this command.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use runtime::state::{Id, Root};

use crate::failure::Failure;

/// A program that has in memory what servers have: modules, text, objects, a database. It says that it is ready, and
/// ends when nobody is there to write to it any more.
const PROGRAM: &str = r#"
import collections, decimal, html.parser, http.server, json, re, sqlite3, sys
words = open(json.__file__).read().split() + open(re.__file__).read().split()
count = collections.Counter(words)
rows = [{"id": n, "name": words[n % len(words)], "price": n * 3.25, "tags": words[n % 90:n % 90 + 5]} for n in range(9000)]
back = json.loads(json.dumps(rows))
base = sqlite3.connect(":memory:")
base.execute("create table item (id integer primary key, name text, price real)")
base.executemany("insert into item values (?, ?, ?)", [(row["id"], row["name"], row["price"]) for row in rows])
numbers = [decimal.Decimal(n) / 7 for n in range(5000)]
print("ready", flush=True)
sys.stdin.read()
"#;

/// A running sandbox; dropped, it ends.
pub struct Example {
    pub id: Id,
    front: Child,
}

impl Example {
    /// Starts one, to measure `what` on.
    pub fn start(root: &Root, what: &str) -> Result<Self, Failure> {
        let failed = |why: String| -> Failure {
            format!("cannot measure {what}: no sandbox is awake, and one with python3 cannot be started: {why}; pass --data FILE")
                .into()
        };
        let id = Id::new(&format!("codec-bench-{}", std::process::id()))?;
        let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
        let mut front = Command::new(program)
            .arg("--root")
            .arg(root.path())
            .args([
                "do",
                "--id",
                id.as_str(),
                "--net",
                "none",
                "--memory",
                "512M",
                "--cwd",
                "/",
                "--",
                "python3",
                "-c",
                PROGRAM,
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        let mut line = String::new();
        let read = front.stdout.take().map(|out| BufReader::new(out).read_line(&mut line));
        let mut example = Self { id, front };
        if matches!(read, Some(Ok(_))) && line == "ready\n" {
            return Ok(example);
        }
        Err(failed(example.last_words()))
    }

    /// Why it did not start: the last line that it wrote, in which the cause is.
    fn last_words(&mut self) -> String {
        drop(self.front.stdin.take());
        let mut words = String::new();
        if let Some(errors) = self.front.stderr.take() {
            let _ = errors.take(64 << 10).read_to_string(&mut words);
        }
        let last = words.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it ended without a word");
        last.trim().to_owned()
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        // The end of its input is its own.
        drop(self.front.stdin.take());
        let _ = self.front.wait();
    }
}
