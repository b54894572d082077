//! Sequences of system calls that were trouble once, run on the kernel without a VMM; and some that never were.

#[path = "../../fuzz/arena.rs"]
mod arena;

/// Hexadecimal, one sequence a line; `#` begins a comment.
const SEQUENCES: &str = include_str!("sequences.txt");

fn bytes_of(line: &str) -> Vec<u8> {
    let digits: Vec<u32> = line.chars().map(|c| c.to_digit(16).expect("a hexadecimal digit")).collect();
    digits
        .chunks(2)
        .map(|pair| u8::try_from(pair.iter().fold(0, |byte, digit| byte * 16 + digit)).unwrap())
        .collect()
}

#[test]
fn sequences_leave_nothing_behind() {
    arena::boot();
    let trace: Option<fn(&str)> =
        if std::env::var_os("SEQUENCES_TRACE").is_some() { Some(|line| eprintln!("{line}")) } else { None };
    for line in SEQUENCES.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        qkernel::harness::run(&bytes_of(line), trace);
        qkernel::harness::run_in_two(&bytes_of(line), trace);
        qkernel::harness::run_in_joined(&bytes_of(line), trace);
    }
    qkernel::harness::run_scenarios(trace);
    qkernel::harness::containers::second_ends_alone(trace);
    qkernel::harness::containers::late_call_wakes_nobody(trace);
    // Random ones, so many as are asked for.
    let rounds = std::env::var("SEQUENCES_RANDOM").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(0);
    // A cheap seeded generator (xorshift64*).
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 56) as u8
    };
    for round in 0..rounds {
        let bytes: Vec<u8> = (0..40 + round % 400).map(|_| next()).collect();
        if trace.is_some() {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            eprintln!("round {round}: {hex}");
        }
        let runs = [qkernel::harness::run, qkernel::harness::run_in_two, qkernel::harness::run_in_joined];
        runs[round % runs.len()](&bytes, trace);
    }
}
