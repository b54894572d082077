//! `/proc/cpuinfo`, from CPUID and from the features that the host's kernel lists.

use alloc::string::String;
use alloc::sync::Arc;
use core::arch::x86_64::{__cpuid, __cpuid_count, CpuidResult};

use crate::proc::Whole;
use crate::pseudo::Out;
use machine::errno::Result;
use machine::host_fact::HostFact;
use machine::platform;
use machine::time;

/// The processor's description of itself, by CPUID.
pub struct Cpu {
    pub vendor: String,
    pub name: String,
    pub family: u32,
    pub model: u32,
    pub stepping: u32,
    pub highest_leaf: u32,
    pub physical_bits: u32,
    pub virtual_bits: u32,
    pub cache_line: u32,
    /// Bytes of the last-level cache.
    pub cache_bytes: u64,
    pub flags: String,
}

/// The features that the host's kernel lists; see [`set_host_flags`].
static HOST_FLAGS: HostFact<String> = HostFact::unknown();
static CPU: HostFact<Cpu> = HostFact::unknown();

/// Features that the host's kernel does not list are not shown: it may know that they do not work (some processors'
/// `rdseed`), or keep programs from them. The VMM passes the host's list at boot.
pub fn set_host_flags(words: Option<String>) {
    match words {
        Some(words) => drop(HOST_FLAGS.set(words)),
        None => HOST_FLAGS.forget(),
    }
    CPU.forget();
}

/// The processor; asked once under each VMM.
pub fn cpu() -> Arc<Cpu> {
    CPU.learn(Cpu::read)
}

fn text_of(words: &[u32]) -> String {
    let bytes: alloc::vec::Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    String::from_utf8_lossy(&bytes).trim_matches(['\0', ' ']).into()
}

fn leaf(number: u32, sub: u32) -> CpuidResult {
    let highest = __cpuid(number & 0xc000_0000).eax;
    if number > highest {
        return CpuidResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };
    }
    __cpuid_count(number, sub)
}

impl Cpu {
    fn read() -> Self {
        let zero = leaf(0, 0);
        let one = leaf(1, 0);
        let (family, model) = family_and_model(one.eax);
        let mut name = alloc::vec::Vec::new();
        for number in 0x8000_0002..=0x8000_0004 {
            let CpuidResult { eax, ebx, ecx, edx } = leaf(number, 0);
            name.extend([eax, ebx, ecx, edx]);
        }
        let sizes = leaf(0x8000_0008, 0).eax;
        Self {
            vendor: text_of(&[zero.ebx, zero.edx, zero.ecx]),
            name: text_of(&name),
            family,
            model,
            stepping: one.eax & 0xf,
            highest_leaf: zero.eax,
            physical_bits: sizes & 0xff,
            virtual_bits: (sizes >> 8) & 0xff,
            cache_line: ((one.ebx >> 8) & 0xff) * 8,
            cache_bytes: caches().map(|cache| cache.bytes).max().unwrap_or(0),
            flags: both(&flags(), HOST_FLAGS.get().as_deref()),
        }
    }
}

fn family_and_model(signature: u32) -> (u32, u32) {
    let mut family = (signature >> 8) & 0xf;
    let mut model = (signature >> 4) & 0xf;
    if family == 6 || family == 15 {
        model |= ((signature >> 16) & 0xf) << 4;
    }
    if family == 15 {
        family += (signature >> 20) & 0xff;
    }
    (family, model)
}

/// One cache, as CPUID leaf 4 (Intel) or `0x8000_001d` (AMD) describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    pub level: u32,
    /// `Data`, `Instruction` or `Unified`.
    pub kind: &'static str,
    pub line: u64,
    pub ways: u64,
    pub sets: u64,
    pub bytes: u64,
}

impl Cache {
    fn parse(words: CpuidResult) -> Option<Self> {
        let kind = match words.eax & 0x1f {
            1 => "Data",
            2 => "Instruction",
            3 => "Unified",
            _ => return None,
        };
        let line = u64::from(words.ebx & 0xfff) + 1;
        let partitions = u64::from((words.ebx >> 12) & 0x3ff) + 1;
        let ways = u64::from(words.ebx >> 22) + 1;
        let sets = u64::from(words.ecx) + 1;
        let level = (words.eax >> 5) & 7;
        Some(Self { level, kind, line, ways, sets, bytes: line * partitions * ways * sets })
    }
}

/// The caches of a CPU, nearest first.
pub fn caches() -> impl Iterator<Item = Cache> {
    let number = if leaf(4, 0).eax & 0x1f != 0 { 4 } else { 0x8000_001d };
    (0..8).map_while(move |sub| Cache::parse(leaf(number, sub)))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reg {
    Eax,
    Ebx,
    Ecx,
    Edx,
}
use Reg::{Eax, Ebx, Ecx, Edx};

/// Names of feature bits: leaf, subleaf, register, then bit and name, in the order Linux prints them.
type Names = (u32, u32, Reg, &'static [(u32, &'static str)]);

static FLAGS: &[Names] = &[
    (
        1,
        0,
        Edx,
        &[
            (0, "fpu"),
            (1, "vme"),
            (2, "de"),
            (3, "pse"),
            (4, "tsc"),
            (5, "msr"),
            (6, "pae"),
            (7, "mce"),
            (8, "cx8"),
            (9, "apic"),
            (11, "sep"),
            (12, "mtrr"),
            (13, "pge"),
            (14, "mca"),
            (15, "cmov"),
            (16, "pat"),
            (17, "pse36"),
            (19, "clflush"),
            (23, "mmx"),
            (24, "fxsr"),
            (25, "sse"),
            (26, "sse2"),
            (27, "ss"),
            (28, "ht"),
        ],
    ),
    (
        0x8000_0001,
        0,
        Edx,
        &[
            (11, "syscall"),
            (20, "nx"),
            (22, "mmxext"),
            (25, "fxsr_opt"),
            (26, "pdpe1gb"),
            (27, "rdtscp"),
            (29, "lm"),
        ],
    ),
    (0x8000_0007, 0, Edx, &[(8, "constant_tsc")]),
    (
        1,
        0,
        Ecx,
        &[
            (0, "pni"),
            (1, "pclmulqdq"),
            (9, "ssse3"),
            (12, "fma"),
            (13, "cx16"),
            (17, "pcid"),
            (19, "sse4_1"),
            (20, "sse4_2"),
            (21, "x2apic"),
            (22, "movbe"),
            (23, "popcnt"),
            (25, "aes"),
            (26, "xsave"),
            (28, "avx"),
            (29, "f16c"),
            (30, "rdrand"),
            (31, "hypervisor"),
        ],
    ),
    (
        0x8000_0001,
        0,
        Ecx,
        &[
            (0, "lahf_lm"),
            (4, "cr8_legacy"),
            (5, "abm"),
            (6, "sse4a"),
            (7, "misalignsse"),
            (8, "3dnowprefetch"),
            (11, "xop"),
            (16, "fma4"),
            (21, "tbm"),
        ],
    ),
    (
        7,
        0,
        Ebx,
        &[
            (0, "fsgsbase"),
            (3, "bmi1"),
            (4, "hle"),
            (5, "avx2"),
            (7, "smep"),
            (8, "bmi2"),
            (9, "erms"),
            (11, "rtm"),
            (16, "avx512f"),
            (17, "avx512dq"),
            (18, "rdseed"),
            (19, "adx"),
            (20, "smap"),
            (21, "avx512ifma"),
            (23, "clflushopt"),
            (24, "clwb"),
            (28, "avx512cd"),
            (29, "sha_ni"),
            (30, "avx512bw"),
            (31, "avx512vl"),
        ],
    ),
    (0xd, 1, Eax, &[(0, "xsaveopt"), (1, "xsavec"), (2, "xgetbv1"), (3, "xsaves")]),
    (7, 1, Eax, &[(4, "avx_vnni"), (5, "avx512_bf16")]),
    (0x8000_0008, 0, Ebx, &[(0, "clzero"), (9, "wbnoinvd")]),
    (
        7,
        0,
        Ecx,
        &[
            (1, "avx512vbmi"),
            (2, "umip"),
            (3, "pku"),
            (4, "ospke"),
            (5, "waitpkg"),
            (6, "avx512_vbmi2"),
            (8, "gfni"),
            (9, "vaes"),
            (10, "vpclmulqdq"),
            (11, "avx512_vnni"),
            (12, "avx512_bitalg"),
            (14, "avx512_vpopcntdq"),
            (22, "rdpid"),
            (25, "cldemote"),
            (27, "movdiri"),
            (28, "movdir64b"),
        ],
    ),
    (
        7,
        0,
        Edx,
        &[
            (4, "fsrm"),
            (8, "avx512_vp2intersect"),
            (14, "serialize"),
            (16, "tsxldtrk"),
            (22, "amx_bf16"),
            (23, "avx512_fp16"),
            (24, "amx_tile"),
            (25, "amx_int8"),
        ],
    ),
];

fn flags() -> String {
    let mut text = String::new();
    for (number, sub, register, names) in FLAGS {
        let words = leaf(*number, *sub);
        let word = match register {
            Eax => words.eax,
            Ebx => words.ebx,
            Ecx => words.ecx,
            Edx => words.edx,
        };
        for (_, name) in names.iter().filter(|(bit, _)| word & (1 << bit) != 0) {
            text.push_str(name);
            text.push(' ');
        }
    }
    text.push_str("rep_good nopl cpuid");
    text
}

/// The words that the host lists as well.
fn both(flags: &str, host: Option<&String>) -> String {
    let Some(host) = host else { return flags.into() };
    let listed = |name: &&str| host.split_ascii_whitespace().any(|other| other == *name);
    let words: alloc::vec::Vec<&str> = flags.split(' ').filter(listed).collect();
    words.join(" ")
}

/// Thousandths of a MHz of the time-stamp counter.
fn tsc_khz() -> u64 {
    let ticks = 1u64 << 32;
    u64::try_from(u128::from(ticks) * 1_000_000 / u128::from(time::ticks_to_ns(ticks).max(1))).unwrap_or(0)
}

/// `/proc/cpuinfo`: one block for each vCPU.
pub fn cpuinfo(_: &Whole, out: &mut Out) -> Result<()> {
    let cpus = platform::cpus();
    for number in 0..cpus {
        push_cpu(out, &cpu(), number, cpus, tsc_khz());
    }
    Ok(())
}

fn push_cpu(out: &mut Out, cpu: &Cpu, number: usize, cpus: usize, khz: u64) {
    let Cpu { vendor, name, family, model, stepping, .. } = cpu;
    writeln!(out, "processor\t: {number}\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}");
    writeln!(out, "model name\t: {name}\nstepping\t: {stepping}\nmicrocode\t: 0x1");
    writeln!(
        out,
        "cpu MHz\t\t: {}.{:03}\ncache size\t: {} KB",
        khz / 1000,
        khz % 1000,
        cpu.cache_bytes / 1024
    );
    writeln!(out, "physical id\t: 0\nsiblings\t: {cpus}\ncore id\t\t: {number}\ncpu cores\t: {cpus}");
    writeln!(out, "apicid\t\t: {number}\ninitial apicid\t: {number}\nfpu\t\t: yes\nfpu_exception\t: yes");
    writeln!(out, "cpuid level\t: {}\nwp\t\t: yes\nflags\t\t: {}\nbugs\t\t:", cpu.highest_leaf, cpu.flags);
    writeln!(out, "bogomips\t: {}.{:02}", khz / 500, khz / 5 % 100);
    writeln!(out, "clflush size\t: {}\ncache_alignment\t: {}", cpu.cache_line, cpu.cache_line);
    let (physical, linear) = (cpu.physical_bits, cpu.virtual_bits);
    writeln!(out, "address sizes\t: {physical} bits physical, {linear} bits virtual\npower management:\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_decoded_as_the_manuals_say() {
        assert_eq!(family_and_model(0x000c_06f2), (6, 207));
        assert_eq!(family_and_model(0x00a2_0f12), (25, 33));
    }

    #[test]
    fn the_flags_are_those_that_the_host_lists() {
        let host = String::from("fpu sse  sse2 rdrand\trdseeds");
        assert_eq!(both("fpu tsc sse sse2 rdseed rdrand", Some(&host)), "fpu sse sse2 rdrand");
        assert_eq!(both("fpu rdseed", None), "fpu rdseed");
        assert!(flags().contains(" sse2 "));
    }

    #[test]
    fn each_line_has_its_colon() {
        let mut out = Out::default();
        push_cpu(&mut out, &cpu(), 1, 2, 2_299_998);
        let text = core::str::from_utf8(&out.bytes).unwrap();
        assert!(text.starts_with("processor\t: 1\nvendor_id\t: "));
        assert!(text.contains("\ncpu MHz\t\t: 2299.998\n") && text.contains("\nbogomips\t: 4599.99\n"));
        assert!(text.ends_with("power management:\n\n"));
        assert!(text.lines().filter(|line| !line.is_empty()).all(|line| line.contains(':')));
    }
}
