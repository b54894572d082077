//! Runs the ring-0 test kernel on kvm.

use abi::HostCall;
use abi::boot::{BootInfo, Platform};
use abi::hostcall as hc;
use abi::layout::*;
use abi::run::CpuHeader;
use qvisor::platform::kvm::*;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::*;

const KERNEL: u64 = 64 << 20;
const USER: u64 = 64 << 20;

fn map(len: u64, prot: i32) -> HostRegion {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: new mapping
    let p = unsafe { libc::mmap(std::ptr::null_mut(), len as usize + (2 << 20), prot, flags, -1, 0) };
    assert!(p != libc::MAP_FAILED);
    let p = (p as u64).next_multiple_of(2 << 20) as *mut u8;
    HostRegion { host: NonNull::new(p).unwrap(), len }
}

struct Vmm {
    kernel: HostRegion,
    controls: Vec<Arc<CpuControl>>,
    counters: Arc<ExitCounters>,
    status: AtomicI64,
}
// SAFETY: test
unsafe impl Send for Vmm {}
// SAFETY: test
unsafe impl Sync for Vmm {}

impl Vmm {
    fn at<T>(&self, phys: u64) -> *mut T {
        assert!(phys + size_of::<T>() as u64 <= self.kernel.len);
        // SAFETY: checked
        unsafe { self.kernel.host.as_ptr().add(phys as usize).cast() }
    }
    fn text(&self, phys: u64, len: u64) -> String {
        // SAFETY: test
        let b = unsafe { std::slice::from_raw_parts(self.at::<u8>(phys), len as usize) };
        String::from_utf8_lossy(b).into_owned()
    }
}

fn now() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: test
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

impl Hostcalls for Vmm {
    fn call(&self, cpu: u32, call: u64) -> Next {
        let p = self.at::<HostCall>(call);
        // SAFETY: test
        let mut c = unsafe { p.read() };
        c.result = 0;
        let mut next = Next::Continue;
        match c.number {
            hc::LOG => println!("{}", self.text(c.args[0], c.args[1])),
            hc::EXIT => {
                self.status.store(c.args[0] as i64, Ordering::SeqCst);
                next = Next::Stop;
            }
            hc::PANIC => {
                println!("PANIC: {}", self.text(c.args[0], c.args[1]));
                self.status.store(97, Ordering::SeqCst);
                next = Next::Stop;
            }
            hc::IDLE => self.controls[cpu as usize].idle(),
            hc::KICK => self.controls[c.args[0] as usize].kick(),
            hc::SET_DEADLINE => self.controls[cpu as usize].set_deadline(c.args[0]),
            // SAFETY: test
            hc::CLOCK => unsafe { self.at::<u64>(c.args[0]).write(now()) },
            1000 => c.result = self.counters.total() as i64,
            n => println!("unknown hostcall {n}"),
        }
        // SAFETY: test
        unsafe { p.write(c) };
        if next == Next::Stop {
            self.controls.iter().for_each(|c| c.stop());
        }
        next
    }
}

fn load(elf: &[u8], kernel: HostRegion) -> (u64, u64, Vec<ImageSegment>) {
    let u = |at: usize| u64::from_le_bytes(elf[at..at + 8].try_into().unwrap());
    let h = |at: usize| u16::from_le_bytes(elf[at..at + 2].try_into().unwrap());
    let w = |at: usize| u32::from_le_bytes(elf[at..at + 4].try_into().unwrap());
    let (ph, n) = (u(32) as usize, h(56) as usize);
    let mut segs = vec![];
    let mut end = 0;
    let mut dynamic = None;
    let mem = kernel.host.as_ptr();
    for i in 0..n {
        let p = ph + i * 56;
        let (off, va, fs, ms) = (u(p + 8), u(p + 16), u(p + 32), u(p + 40));
        if w(p) == 1 {
            // SAFETY: test
            unsafe {
                std::ptr::copy_nonoverlapping(
                    elf[off as usize..].as_ptr(),
                    mem.add((KERNEL_IMAGE_PHYS + va) as usize),
                    fs as usize,
                )
            };
            segs.push(ImageSegment {
                phys: KERNEL_IMAGE_PHYS + va,
                len: ms,
                writable: w(p + 4) & 2 != 0,
                executable: w(p + 4) & 1 != 0,
            });
            end = end.max(KERNEL_IMAGE_PHYS + va + ms);
        } else if w(p) == 2 {
            dynamic = Some((off as usize, fs as usize));
        }
    }
    let (off, len) = dynamic.unwrap();
    let (mut rela, mut size) = (0, 0);
    for d in (off..off + len).step_by(16) {
        match u(d) {
            7 => rela = u(d + 8) as usize,
            8 => size = u(d + 8) as usize,
            _ => {}
        }
    }
    let base = LINEAR_BASE_KVM + KERNEL_IMAGE_PHYS;
    for r in (rela..rela + size).step_by(24) {
        assert_eq!(u(r + 8), 8);
        // SAFETY: test
        unsafe { mem.add((KERNEL_IMAGE_PHYS + u(r)) as usize).cast::<u64>().write(base + u(r + 16)) };
    }
    (base + u(24), end, segs)
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if args[1] == "probe" {
        for _ in 0..2 {
            let report = qvisor::platform::probe::report();
            println!("{report}: {report:?}");
        }
        return;
    }
    let elf = std::fs::read(&args[1]).unwrap();
    let mode = args.get(2).cloned().unwrap_or_default();
    let rw = libc::PROT_READ | libc::PROT_WRITE;
    let kernel = map(KERNEL, rw);
    let user = map(USER, rw);
    let window = map(WINDOW_CHUNKS * WINDOW_CHUNK, libc::PROT_NONE);
    let mut file = std::fs::File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open("/tmp/ring0-file")
        .unwrap();
    std::io::Write::write_all(&mut file, &[b'f'; 4096]).unwrap();
    // SAFETY: test
    unsafe {
        use std::os::fd::AsRawFd;
        let p = libc::mmap(
            window.host.as_ptr().cast(),
            2 << 20,
            libc::PROT_READ,
            libc::MAP_SHARED | libc::MAP_FIXED,
            file.as_raw_fd(),
            0,
        );
        assert!(p != libc::MAP_FAILED);
    }
    let (entry, end, image) = load(&elf, kernel);
    let kvm = kvm_ioctls::Kvm::new().expect("/dev/kvm");
    // SAFETY: never unmapped
    let machine =
        unsafe { Machine::new(&kvm, &Memory { kernel, user, window, image: &image, free_phys: end }, 2) }
            .unwrap();
    let state = machine.user_state();
    println!("user state {state:x?}");
    let vcpus: Vec<Vcpu> = (0..2).map(|i| machine.create_vcpu(i, entry).unwrap()).collect();
    let vmm = Arc::new(Vmm {
        kernel,
        controls: vcpus.iter().map(|v| v.control().clone()).collect(),
        counters: machine.counters().clone(),
        status: AtomicI64::new(-1),
    });
    for cpu in 0..2u32 {
        let phys = CPU_AREA_PHYS + u64::from(cpu) * CPU_AREA_SIZE;
        // SAFETY: test
        unsafe {
            vmm.at::<CpuHeader>(phys).write(CpuHeader {
                this: LINEAR_BASE_KVM + phys,
                current: 0.into(),
                trap_sp: 0,
                scratch: 0,
                host_sp: 0,
                pending: 0.into(),
                cpu,
                deadline_ns: u64::MAX.into(),
                in_user: 0.into(),
            })
        };
    }
    let boot = BootInfo {
        version: abi::ABI_VERSION,
        platform: Platform::Kvm as u32,
        linear_base: LINEAR_BASE_KVM,
        heap_phys: machine.heap_phys(),
        heap_end_phys: KERNEL,
        user_end_phys: USER_PHYS + USER,
        user_frames_limit: USER / 4096,
        records_len: mode.len() as u64,
        hostcall_entry: 0,
        xsave_size: state.xsave_size,
        cpus: 2,
        xsave_mask: state.xsave_mask,
        tsc_hz: Machine::tsc_hz(&vcpus[0]).unwrap_or(0),
        random_seed: [0; 32],
        strace: 0,
        log_level: 3,
    };
    // SAFETY: test
    unsafe {
        vmm.at::<BootInfo>(BOOT_INFO_PHYS).write(boot);
        std::ptr::copy_nonoverlapping(mode.as_ptr(), vmm.at::<u8>(RECORDS_PHYS), mode.len());
    }
    let threads: Vec<_> = vcpus
        .into_iter()
        .map(|mut v| {
            let vmm = vmm.clone();
            std::thread::spawn(move || {
                let s = v.run(&*vmm);
                if let Stopped::Failed(f) = s {
                    println!("FAILURE: {f}");
                    vmm.status.store(96, Ordering::SeqCst);
                    vmm.controls.iter().for_each(|c| c.stop());
                }
            })
        })
        .collect();
    for t in threads {
        t.join().unwrap();
    }
    println!("exits {:?}", machine.counters().values());
    if mode.is_empty() {
        let n = 20000;
        let s = now();
        for _ in 0..n {
            // SAFETY: test
            unsafe { libc::syscall(libc::SYS_getppid) };
        }
        println!("time    native getppid: {} ns", (now() - s) / n);
    }
    std::process::exit(vmm.status.load(Ordering::SeqCst) as i32);
}
