//! `dormouse codec bench`, from outside: on files whose content is known, on sandboxes, and with bad input. Speeds are never
//! compared: only that there are some.

mod sleeper;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use sleeper::TestSandbox;

const PAGE: usize = 4096;
const CODECS: [&str; 6] = ["none", "lz4", "zstd", "deflate-fixed", "deflate-dynamic", "deflate-canned"];

fn words(pages: usize) -> Vec<u8> {
    vec![7; pages * PAGE]
}

/// Packs well, and no page of it is like another.
fn text(pages: usize) -> Vec<u8> {
    let lines = (0..)
        .flat_map(|line: usize| format!("{line}: a mouse sleeps in nest {}\n", line * 7 % 1000).into_bytes());
    lines.take(pages * PAGE).collect()
}

fn random(pages: usize) -> Vec<u8> {
    let mut seed = 1_u64;
    let mut byte = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 56) as u8
    };
    (0..pages * PAGE).map(|_| byte()).collect()
}

/// A fixture whose directory holds a file of these bytes.
fn with_file(bytes: &[u8]) -> (TestSandbox, PathBuf) {
    let sandbox = TestSandbox::new();
    let path = sandbox.dir.join("pages");
    fs::write(&path, bytes).unwrap();
    fs::create_dir(&sandbox.swap).unwrap();
    (sandbox, path)
}

/// One round, in JSON. The directory of the disk is the fixture's.
fn bench(sandbox: &TestSandbox, options: &[&str]) -> Value {
    let fixed = ["codec", "bench", "--json", "--rounds", "1", "--swap-dir", sandbox.swap.to_str().unwrap()];
    let output = sandbox.run(&[&fixed, options].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The figures of a codec by pieces of a size.
fn of<'a>(report: &'a Value, codec: &str, piece_bytes: u64) -> &'a Value {
    let mut all = report["codecs"].as_array().unwrap().iter();
    all.find(|one| one["codec"] == codec && one["piece_bytes"] == piece_bytes).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))
}

fn is_whole(report: &Value) {
    // Where there is an accelerator it is measured, too; else it is said why not.
    let why = &report["no_accelerator"];
    let by_accelerator = usize::from(why.is_null());
    assert!(why.is_null() || !why.as_str().unwrap().contains('\n'), "{why}");
    assert_eq!(report["codecs"].as_array().unwrap().len(), 2 * (CODECS.len() + by_accelerator));
    for codec in CODECS {
        for piece_bytes in [4 << 10, 64 << 10] {
            let one = of(report, codec, piece_bytes);
            for speed in [&one["pack_mb_s"], &one["unpack_mb_s"]] {
                let [slowest, median, fastest] =
                    ["slowest", "median", "fastest"].map(|name| number(&speed[name]));
                assert!(slowest > 0.0 && slowest <= median && median <= fastest, "{one}");
            }
            assert!(number(&one["ratio_of_all"]) >= number(&one["ratio"]), "{one}");
        }
    }
    let disk = &report["disk"];
    assert!(number(&disk["read_bytes_s"]) > 0.0 && number(&disk["file_bytes"]) > 0.0, "{disk}");
    let cores = &report["cores"];
    assert!(number(&cores["online"]) >= 1.0 && number(&cores["idle"]) >= 0.0, "{cores}");
    let auto = &report["auto"];
    let codec = auto["codec"].as_str().unwrap();
    assert!(
        CODECS.contains(&codec) && auto["why"].as_str().unwrap().starts_with(&format!("{codec}: ")),
        "{auto}"
    );
}

#[test]
fn a_file_of_known_content() {
    let (sandbox, path) = with_file(&[words(16), text(32), random(16)].concat());
    let report = bench(&sandbox, &["--data", path.to_str().unwrap()]);
    is_whole(&report);
    assert_eq!((&report["pages"], &report["word_pages"]), (&64.into(), &16.into()));
    for codec in &CODECS[1..] {
        let (page, partition) = (of(&report, codec, 4 << 10), of(&report, codec, 64 << 10));
        // What does not pack stays as it is: sixteen pages, or one partition of them.
        assert_eq!((&page["raw_pieces"], &partition["raw_pieces"]), (&16.into(), &1.into()), "{codec}");
        // 48 pages in what those 16 take and some of the text.
        for one in [page, partition] {
            let ratio = number(&one["ratio"]);
            assert!(ratio > 1.8 && ratio < 3.0, "{one}");
            assert!((number(&one["ratio_of_all"]) / ratio - 64.0 / 48.0).abs() < 1e-9, "{one}");
            let packed = number(&one["packed_bytes"]);
            assert!((packed * ratio - (48 * PAGE) as f64).abs() < 1.0, "{one}");
        }
    }
    assert_eq!(number(&of(&report, "none", 4 << 10)["ratio"]), 1.0);
    assert_eq!(fs::read_dir(&sandbox.swap).unwrap().count(), 0, "the disk keeps nothing");
}

#[test]
fn a_table_and_a_chart_for_people() {
    let (sandbox, path) = with_file(&text(40));
    let svg = sandbox.dir.join("chart.svg");
    let (path, swap, chart) = (path.to_str().unwrap(), sandbox.swap.to_str().unwrap(), svg.to_str().unwrap());
    let output =
        sandbox.run(&["codec", "bench", "--rounds", "2", "--data", path, "--swap-dir", swap, "--svg", chart]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.starts_with(&format!("Pages of {path}: 40; 0 hold one word")), "{table}");
    for codec in CODECS {
        assert_eq!(table.lines().filter(|line| line.starts_with(&format!("{codec} "))).count(), 2, "{table}");
    }
    assert!(table.contains(&format!("\n{swap} reads ")) && table.contains("\nauto would choose "), "{table}");
    let chart = fs::read_to_string(&svg).unwrap();
    assert!(chart.starts_with("<svg xmlns=") && chart.ends_with("</svg>\n"), "{chart}");
    for (open, close) in [("<text ", "</text>"), ("<style>", "</style>"), ("<svg ", "</svg>")] {
        assert_eq!(chart.matches(open).count(), chart.matches(close).count());
    }
    assert!(!chart.contains("href") && !chart.contains("NaN"), "{chart}");
}

#[test]
fn of_a_large_file_a_sample_from_everywhere_is_taken() {
    let (sandbox, path) = with_file(b"");
    let file = File::options().write(true).open(&path).unwrap();
    // Nine partitions in ten are a hole.
    let (partition, all) = (64 << 10, 2000);
    file.set_len(all * partition).unwrap();
    for number in (0..all).step_by(10) {
        file.write_all_at(&text(16), number * partition).unwrap();
    }
    let report = bench(&sandbox, &["--data", path.to_str().unwrap()]);
    let (pages, words) = (report["pages"].as_u64().unwrap(), report["word_pages"].as_u64().unwrap());
    assert_eq!((pages, &report["bytes_there"]), (16 << 10, &(all * partition).into()));
    let text = pages - words;
    assert!(text.is_multiple_of(16) && (800..2400).contains(&text), "{text}");
}

#[test]
fn the_memory_of_a_sandbox_that_does_not_notice() {
    let mut sandbox = TestSandbox::new();
    sandbox.start_pattern(&[], &[]);
    // Named, and as the only one that is awake.
    for options in [["--data", "s"].as_slice(), &[]] {
        let there = number(&sandbox.order(&["stats"])["memory"]["user_resident_bytes"]);
        let report = bench(&sandbox, options);
        is_whole(&report);
        assert_eq!(report["pages_of"], "sandbox s");
        let pages = number(&report["pages"]);
        assert!(pages * PAGE as f64 >= 0.7 * there, "{pages} pages of {there} bytes");
        // Most of its pages are random words; one in eight holds one word.
        assert!(number(&of(&report, "zstd", 4 << 10)["raw_pieces"]) > 0.3 * pages, "{report}");
        assert!(number(&report["word_pages"]) > 0.05 * pages, "{report}");
    }
    assert_eq!(sandbox.status(), "running");
    // A file's name has a slash.
    let missing = sandbox.run(&["codec", "bench", "--data", "./s"]);
    assert!(String::from_utf8_lossy(&missing.stderr).contains("No such file"));
    sandbox.sleeps();
    sandbox.refuses(
        &["codec", "bench", "--swap-dir", ".", "--data"],
        "it is hibernated, so its memory is on the disk; run: dormouse wake s",
    );
    assert_eq!(sandbox.status(), "hibernated");
    sandbox.order(&["wake"]);
    is_whole(&bench(&sandbox, &["--data", "s"]));
    sandbox.kill("TERM");
    sandbox.ends_well();
}

#[test]
fn where_no_sandbox_is_awake_one_is_started_for_it_and_ends() {
    if !Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success()) {
        eprintln!("left out: python3 is not installed");
        return;
    }
    let sandbox = TestSandbox::new();
    fs::create_dir(&sandbox.swap).unwrap();
    let report = bench(&sandbox, &[]);
    is_whole(&report);
    assert_eq!(report["pages_of"], "a sandbox with Python");
    assert!(number(&report["pages"]) > 1000.0, "{report}");
    // Memory of programs packs well.
    assert!(number(&of(&report, "zstd", 64 << 10)["ratio"]) > 1.5, "{report}");
    assert!(sandbox.run(&["list", "-q"]).stdout.is_empty());
}

#[test]
fn bad_input_is_refused_in_one_sentence() {
    let (sandbox, path) = with_file(&text(4));
    fs::write(sandbox.dir.join("empty"), b"").unwrap();
    fs::write(sandbox.dir.join("short"), [1; PAGE - 1]).unwrap();
    fs::write(sandbox.dir.join("same"), words(20)).unwrap();
    assert!(Command::new("mkfifo").arg(sandbox.dir.join("pipe")).status().unwrap().success());
    let good = path.to_str().unwrap();
    for (options, words) in [
        (["--data", "nobody"].as_slice(), "neither a sandbox of this ID nor such a file"),
        (&["--data", "/no/such/file"], "No such file"),
        (&["--data", ""], "--data names nothing"),
        (&["--data", "."], "it is not a regular file"),
        (&["--data", "pipe"], "it is not a regular file"),
        (&["--data", "/dev/zero"], "it is not a regular file"),
        (&["--data", "empty"], "it has 0 bytes"),
        (&["--data", "short"], "it has 4095 bytes"),
        (&["--data", "same"], "each page holds one word"),
        (&["--data", good, "--swap-dir", "/no/such/place"], "cannot make a swap file in /no/such/place"),
        (&["--data", good, "--swap-dir", good], "cannot make a swap file in"),
        (&["--data", good, "--svg", "/no/such/place/chart.svg"], "cannot write /no/such/place/chart.svg"),
        (&["--data", good, "--svg", "."], "cannot write ."),
        (&["--data", good, "--config", "/no/such/config"], "cannot use configuration /no/such/config"),
    ] {
        let output = sandbox.run(&[["codec", "bench"].as_slice(), options].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{options:?}: {error}");
        assert!(error.contains(words) && error.contains("; "), "{options:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{options:?}: {error}");
    }
    for options in [["--rounds", "0"], ["--rounds", "many"], ["--rounds", "101"], ["--no-such", "option"]] {
        let output = sandbox.run(&[["codec", "bench"], options].concat());
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{options:?}");
        assert!(!output.stderr.is_empty());
    }
}
