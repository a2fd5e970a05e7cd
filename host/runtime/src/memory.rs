//! The memory of this process: how much a piece of work takes, for bounds on what cannot say it itself, since each thread
//! counts what it allocates; and how what is freed goes back to the system.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// What this thread has allocated, less what it has freed, in bytes. It may have freed what others allocated.
    static HELD: Cell<isize> = const { Cell::new(0) };
}

/// Does some work, and says by how many bytes this thread holds more than before, or less.
pub fn held_by<T>(work: impl FnOnce() -> T) -> (T, isize) {
    let before = HELD.get();
    let done = work();
    (done, HELD.get().wrapping_sub(before))
}

/// Has what is freed go back to the system, for the whole process. glibc keeps a heap for each few threads, and a little
/// that is left in one keeps all of it: guests that take much and free it, on one thread after the other, would have the
/// process grow from term to term.
pub fn keep_one_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: these take numbers only, and may be called at any time.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        // As it is at first. It would grow with what is freed, and large pieces would no longer go back at once.
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
    }
}

/// The system's allocator, which counts.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Neither allocates nor panics: the cell is a constant without a destructor, which is there as long as its thread.
fn count(bytes: usize, freed: usize) {
    HELD.set(HELD.get().wrapping_add_unsigned(bytes).wrapping_sub_unsigned(freed));
}

// SAFETY: each call is handed on to the system's allocator as it is, which keeps the contract; counting does not
// allocate, panic or touch the memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller keeps the contract of this very call.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller keeps the contract of this very call.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: the caller keeps the contract of this very call, and the system's allocator has given the memory.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        // SAFETY: the caller keeps the contract of this very call, and the system's allocator has given the memory.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_counted_and_what_is_freed_is_not() {
        let (kept, held) = held_by(|| {
            drop(vec![0_u8; 1 << 20]);
            let mut kept = vec![0_u8; 1000];
            kept.reserve_exact(9000);
            kept
        });
        assert_eq!(held, 10_000);
        let ((), held) = held_by(|| drop(kept));
        assert_eq!(held, -10_000);
    }
}
