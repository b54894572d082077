//! `codec_bench [--rounds N] [--peers] FILE…`: every style on the pages of each file, and zlib and libdeflate beside them.
//! `scripts/bench-codec` makes the files.

use std::{env, fs, process::ExitCode, time::Duration};

use codec::{Measured, PAGE_BYTES, PIECE_BYTES, Style, measure};

fn row(file: &str, name: &str, piece: usize, ratio: f64, pack: [f64; 3], unpack: [f64; 3]) {
    println!(
        "{file:8} {name:18} {:>4}K {ratio:6.2} {:7.0} ({:.0}-{:.0}) {:9.0} ({:.0}-{:.0})",
        piece >> 10,
        pack[0],
        pack[1],
        pack[2],
        unpack[0],
        unpack[1],
        unpack[2]
    );
}

fn ours(file: &str, one: &Measured) {
    let speed = |speed: codec::Speed| [speed.median, speed.slowest, speed.fastest];
    row(file, &one.style.to_string(), one.piece_bytes, one.ratio(), speed(one.pack), speed(one.unpack));
}

type Pack = dyn FnMut(&[u8], &mut [u8]) -> Option<usize>;
type Unpack = dyn FnMut(&[u8], &mut [u8]);

/// One packer and unpacker of another library.
struct Peer {
    name: &'static str,
    pack: Box<Pack>,
    unpack: Box<Unpack>,
}

fn zlib(level: u32) -> Peer {
    let mut packer = flate2::Compress::new(flate2::Compression::new(level), false);
    let mut unpacker = flate2::Decompress::new(false);
    Peer {
        name: if level == 1 { "zlib-rs -1" } else { "zlib-rs -6" },
        pack: Box::new(move |piece, out| {
            packer.reset();
            let status = packer.compress(piece, out, flate2::FlushCompress::Finish).ok()?;
            (status == flate2::Status::StreamEnd).then(|| usize::try_from(packer.total_out()).expect("small"))
        }),
        unpack: Box::new(move |packed, out| {
            unpacker.reset(false);
            unpacker.decompress(packed, out, flate2::FlushDecompress::Finish).expect("it was packed");
        }),
    }
}

fn libdeflate(level: i32) -> Peer {
    let mut packer =
        libdeflater::Compressor::new(libdeflater::CompressionLvl::new(level).expect("there is this level"));
    let mut unpacker = libdeflater::Decompressor::new();
    Peer {
        name: if level == 1 { "libdeflate -1" } else { "libdeflate -6" },
        pack: Box::new(move |piece, out| packer.deflate_compress(piece, out).ok()),
        unpack: Box::new(move |packed, out| {
            unpacker.deflate_decompress(packed, out).expect("it was packed");
        }),
    }
}

fn cpu_time() -> Duration {
    rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}

fn peer(file: &str, memory: &[u8], piece_bytes: usize, rounds: usize, mut peer: Peer) {
    let mut packed: Vec<Option<Vec<u8>>> = Vec::new();
    let mut out = vec![0; 2 * PIECE_BYTES];
    let speeds = |work: &mut dyn FnMut()| {
        let mut speeds: Vec<f64> = (0..rounds)
            .map(|_| {
                let start = cpu_time();
                work();
                #[expect(clippy::cast_precision_loss, reason = "for people")]
                let bytes = memory.len() as f64;
                bytes / 1e6 / (cpu_time() - start).as_secs_f64()
            })
            .collect();
        speeds.sort_unstable_by(f64::total_cmp);
        [speeds[rounds / 2], speeds[0], speeds[rounds - 1]]
    };
    let pack = speeds(&mut || {
        packed.clear();
        for piece in memory.chunks(piece_bytes) {
            // Some write more than a piece before they find that it does not get smaller.
            let len = (peer.pack)(piece, &mut out).filter(|len| *len <= piece.len() - piece.len() / 8);
            packed.push(len.map(|len| out[..len].to_vec()));
        }
    });
    let mut back = vec![0; memory.len()];
    let unpack = speeds(&mut || {
        for ((to, from), packed) in back.chunks_mut(piece_bytes).zip(memory.chunks(piece_bytes)).zip(&packed)
        {
            match packed {
                Some(packed) => (peer.unpack)(packed, to),
                None => to.copy_from_slice(from),
            }
        }
    });
    assert!(back == memory, "{} is no peer", peer.name);
    let total: usize = packed.iter().map(|one| one.as_ref().map_or(piece_bytes, Vec::len)).sum();
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    row(file, peer.name, piece_bytes, memory.len() as f64 / total as f64, pack, unpack);
}

fn main() -> ExitCode {
    let (mut rounds, mut has_peers, mut styles) = (5, false, Style::ALL.to_vec());
    let mut arguments = env::args().skip(1);
    println!(
        "{:8} {:18} {:>5} {:>6} {:>17} {:>19}",
        "pages", "codec", "piece", "ratio", "pack MB/s", "unpack MB/s"
    );
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--rounds" => rounds = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(rounds),
            "--peers" => has_peers = true,
            "--style" => match arguments.next().unwrap_or_default().parse() {
                Ok(style) => styles = vec![style],
                Err(error) => {
                    eprintln!("{error}");
                    return ExitCode::FAILURE;
                }
            },
            path => {
                let Ok(memory) = fs::read(path) else {
                    eprintln!("cannot read {path}; give files of pages");
                    return ExitCode::FAILURE;
                };
                let file = path.rsplit('/').next().unwrap_or(path);
                let memory = &memory[..memory.len() / PAGE_BYTES * PAGE_BYTES];
                match measure(memory, &styles, rounds) {
                    Ok(all) => all.iter().for_each(|one| ours(file, one)),
                    Err(error) => {
                        eprintln!("{error}");
                        return ExitCode::FAILURE;
                    }
                }
                for piece in [PAGE_BYTES, PIECE_BYTES].into_iter().filter(|_| has_peers) {
                    for one in [zlib(1), zlib(6), libdeflate(1), libdeflate(6)] {
                        peer(file, memory, piece, rounds, one);
                    }
                }
            }
        }
    }
    ExitCode::SUCCESS
}
