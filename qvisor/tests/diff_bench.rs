//! `dormouse diff bench`, from outside: on a snapshot, plain and packed, with data from a file and from a sandbox, and with bad input.
//! Times are never compared: only that there are some.

mod sleeper;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use sleeper::TestSandbox;

const PAGE: usize = 4096;

/// A fixture whose sandbox runs, and a snapshot of it as it is.
fn with_snapshot(options: &[&str]) -> (TestSandbox, String) {
    let mut sandbox = TestSandbox::new();
    sandbox.start_pattern(&[], &[]);
    let image = sandbox.dir.join("image").to_str().unwrap().to_owned();
    let fixed = ["checkpoint", "--leave-running", "--image-path", &image];
    let output = sandbox.run(&[&fixed, options, &["s"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (sandbox, image)
}

fn ends(mut sandbox: TestSandbox) {
    sandbox.kill("TERM");
    sandbox.ends_well();
}

/// One round, in JSON.
fn bench(sandbox: &TestSandbox, options: &[&str]) -> Value {
    let output = sandbox.run(&[&["diff", "bench", "--json", "--rounds", "1"], options].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn method<'a>(report: &'a Value, name: &str) -> &'a Value {
    report["methods"].as_array().unwrap().iter().find(|one| one["name"] == name).unwrap()
}

fn pages_kept(report: &Value, way: &str) -> u64 {
    let ways = report["ways"].as_array().unwrap();
    ways.iter().find(|one| one["way"] == way).unwrap()["pages"].as_u64().unwrap()
}

fn is_whole(report: &Value) {
    let names = ["differences", "+ lz4", "+ zstd", "lz4", "zstd", "zstd on the base"];
    for name in names {
        let one = method(report, name);
        assert!(one["bytes"].as_u64().unwrap() > 0, "{one}");
        let [lowest, median, highest] =
            ["lowest", "median", "highest"].map(|of| one["once_a_sleeper_s"][of].as_f64().unwrap());
        assert!(lowest > 0.0 && lowest <= median && median <= highest, "{one}");
    }
    let has_xdelta = report["no_xdelta"].is_null();
    assert_eq!(report["methods"].as_array().unwrap().len(), names.len() + usize::from(has_xdelta));
    let ways: u64 = report["ways"].as_array().unwrap().iter().map(|one| one["pages"].as_u64().unwrap()).sum();
    assert_eq!(ways, report["pages"].as_u64().unwrap());
}

/// Half of its pages are changed ones of a snapshot's file of pages, the others are zero.
fn changed_pages(image: &str, sandbox: &TestSandbox) -> PathBuf {
    let mut pages = fs::read(PathBuf::from(image).join("pages.img")).unwrap();
    pages.truncate(pages.len() / PAGE * PAGE);
    for page in pages.chunks_exact_mut(PAGE) {
        page[40..48].fill(0xab);
    }
    pages.extend(vec![0; pages.len()]);
    let path = sandbox.dir.join("changed");
    fs::write(&path, pages).unwrap();
    path
}

#[test]
fn a_file_and_the_sandbox_itself_beside_its_snapshot() {
    let (sandbox, image) = with_snapshot(&[]);
    let file = changed_pages(&image, &sandbox);
    let report = bench(&sandbox, &["--base", &image, "--data", file.to_str().unwrap()]);
    is_whole(&report);
    let pages = report["pages"].as_u64().unwrap();
    assert!(pages_kept(&report, "zero") >= pages / 2, "{report}");
    // One word each is another one, and holes of the file are pages with little in them.
    assert!(pages_kept(&report, "xor") > report["base_pages"].as_u64().unwrap() / 2, "{report}");
    assert!(method(&report, "differences")["share"].as_f64().unwrap() < 0.05, "{report}");
    // It goes on, and writes to most of its pages.
    let report = bench(&sandbox, &["--base", &image, "--data", "s"]);
    is_whole(&report);
    assert!(pages_kept(&report, "same place") > 50, "{report}");
    assert_eq!(sandbox.status(), "running");
    ends(sandbox);
}

#[test]
fn a_packed_snapshot_a_table_and_a_chart() {
    let (sandbox, image) = with_snapshot(&["--codec", "lz4"]);
    let svg = sandbox.dir.join("chart.svg");
    let chart = svg.to_str().unwrap();
    let output =
        sandbox.run(&["diff", "bench", "--rounds", "2", "--base", &image, "--data", "s", "--svg", chart]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.starts_with("Pages of sandbox s: "), "{table}");
    assert!(table.contains(&format!("\nBase, snapshot {image}: ")), "{table}");
    for name in ["differences", "zstd", "same place", "right after a rest"] {
        assert!(table.lines().any(|line| line.starts_with(&format!("{name} "))), "{name}: {table}");
    }
    assert!(table.contains("xdelta3"), "{table}");
    let chart = fs::read_to_string(&svg).unwrap();
    assert!(chart.starts_with("<svg xmlns=") && chart.ends_with("</svg>\n") && !chart.contains("NaN"));
    ends(sandbox);
}

#[test]
fn with_neither_two_sandboxes_are_started_and_end() {
    if !Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success()) {
        eprintln!("left out: python3 is not installed");
        return;
    }
    let sandbox = TestSandbox::new();
    let report = bench(&sandbox, &[]);
    is_whole(&report);
    assert_eq!(
        (&report["base_of"], &report["pages_of"]),
        (&report["pages_of"], &"a sandbox with Python".into())
    );
    assert!(method(&report, "differences")["share"].as_f64().unwrap() < 0.7, "{report}");
    assert!(sandbox.run(&["list", "-q"]).stdout.is_empty());
}

#[test]
fn bad_input_is_refused_in_one_sentence() {
    let (sandbox, image) = with_snapshot(&[]);
    let file = changed_pages(&image, &sandbox);
    let good = file.to_str().unwrap();
    fs::write(sandbox.dir.join("short"), [1; PAGE - 1]).unwrap();
    for (options, words) in [
        (["--base", &image, "--data", "nobody"].as_slice(), "neither a sandbox of this ID nor such a file"),
        (&["--base", &image, "--data", "/no/such/file"], "No such file"),
        (&["--base", &image, "--data", "short"], "it has 4095 bytes"),
        (&["--base", &image], "pass --data FILE or --data ID"),
        (&["--data", good], "pass a snapshot's name or the path of its directory by --base"),
        (&["--base", "no-such-snapshot", "--data", good], "no-such-snapshot"),
        (&["--base", &image, "--data", good, "--svg", "/no/such/place/c.svg"], "cannot write /no/such/place"),
    ] {
        let output = sandbox.run(&[["diff", "bench"].as_slice(), options].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{options:?}: {error}");
        assert!(error.contains(words), "{options:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{options:?}: {error}");
    }
    ends(sandbox);
}
