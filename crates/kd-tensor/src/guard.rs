//! Failures that the system reports by a signal, turned into one line on stderr and exit code 1.
//!
//! Reading a mapped file past its end, after another process cut it short, or a page that its disk cannot deliver, raises
//! SIGBUS in the middle of whatever touched the page. Nothing can be unwound from there, but the process can say which
//! file it was and end. A program asks for that with [`install`]; the library itself changes no signal.

#[cfg(unix)]
pub(crate) use unix::Watch;
#[cfg(unix)]
pub use unix::install;

/// Does nothing on a system without these signals.
#[cfg(not(unix))]
pub fn install() {}

#[cfg(unix)]
mod unix {
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;
    use std::ptr;
    use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

    use libc::{c_int, c_void, siginfo_t};

    /// Files watched at once; a checkpoint has some tens. A fault in one beyond them ends the process by the signal.
    const SLOTS: usize = 1024;
    /// A slot that is being filled: no address is below 1.
    const RESERVED: usize = 1;

    /// One mapped file. `start` is 0 when the slot is free.
    struct Slot {
        start: AtomicUsize,
        end: AtomicUsize,
        path: AtomicPtr<u8>,
        path_len: AtomicUsize,
    }

    static MAPS: [Slot; SLOTS] = [const {
        Slot {
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            path: AtomicPtr::new(ptr::null_mut()),
            path_len: AtomicUsize::new(0),
        }
    }; SLOTS];

    /// Keeps the name of a mapped file where the handler finds it, for as long as the map exists.
    pub(crate) struct Watch {
        slot: Option<&'static Slot>,
        _path: Box<[u8]>,
    }

    impl Watch {
        /// Watches the mapped `bytes` of the file `path`.
        pub(crate) fn new(bytes: &[u8], path: &Path) -> Self {
            let path: Box<[u8]> = path.as_os_str().as_bytes().into();
            let range = bytes.as_ptr_range();
            let claim = |slot: &&Slot| {
                slot.start.compare_exchange(0, RESERVED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            };
            let slot = MAPS.iter().find(claim);
            if let Some(slot) = slot {
                slot.path.store(path.as_ptr().cast_mut(), Ordering::Relaxed);
                slot.path_len.store(path.len(), Ordering::Relaxed);
                slot.end.store(range.end as usize, Ordering::Relaxed);
                slot.start.store(range.start as usize, Ordering::Release);
            }
            Self { slot, _path: path }
        }
    }

    impl Drop for Watch {
        fn drop(&mut self) {
            if let Some(slot) = self.slot {
                slot.end.store(0, Ordering::Relaxed);
                slot.start.store(0, Ordering::Release);
            }
        }
    }

    /// Turns a fault in a mapped file into an error line and exit code 1, an abort (which follows its own message: memory
    /// exhausted, stack overflow) into exit code 1, and a write beyond a file-size limit into an ordinary error.
    pub fn install() {
        // SAFETY: `on_bus` and `on_abort` have the signatures that their flags ask for and call async-signal-safe
        // functions only; a zeroed `sigaction` is an empty mask with no flags.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let on_bus: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = on_bus;
            action.sa_sigaction = on_bus as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGBUS, &action, ptr::null_mut());
            let on_abort: extern "C" fn(c_int) = on_abort;
            action.sa_sigaction = on_abort as usize;
            action.sa_flags = libc::SA_ONSTACK;
            libc::sigaction(libc::SIGABRT, &action, ptr::null_mut());
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        }
    }

    extern "C" fn on_abort(_signal: c_int) {
        // SAFETY: async-signal-safe, and takes any number.
        unsafe { libc::_exit(1) }
    }

    extern "C" fn on_bus(signal: c_int, info: *mut siginfo_t, _context: *mut c_void) {
        // SAFETY: the system passes a valid `siginfo_t` to a handler with SA_SIGINFO, and SIGBUS sets its address.
        let address = unsafe { (*info).si_addr() } as usize;
        let hit = |slot: &&Slot| {
            let (start, end) = (slot.start.load(Ordering::Acquire), slot.end.load(Ordering::Relaxed));
            start > RESERVED && (start..end).contains(&address)
        };
        let Some(slot) = MAPS.iter().find(hit) else {
            // Not ours: once more with the default action.
            // SAFETY: async-signal-safe, with a signal that the system itself named.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
            return;
        };
        let (path, len) = (slot.path.load(Ordering::Relaxed), slot.path_len.load(Ordering::Relaxed));
        write(b"kd: ".as_ptr(), 4);
        // The thread that faulted looks into this map, so the map's `Watch`, which owns the path, is alive.
        write(path, len);
        let rest: &[u8] = b": the file became shorter while it was in use, or its disk cannot be read\n";
        write(rest.as_ptr(), rest.len());
        // SAFETY: async-signal-safe, and takes any number.
        unsafe { libc::_exit(1) }
    }

    fn write(bytes: *const u8, len: usize) {
        // SAFETY: every caller passes memory that is alive for `len` bytes; `write` is async-signal-safe. A failure
        // has nowhere to be reported.
        let _ = unsafe { libc::write(libc::STDERR_FILENO, bytes.cast(), len) };
    }
}
