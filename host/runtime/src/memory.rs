//! The heap of this process.

/// Makes the allocator return freed memory to the system, for the whole process. By default, glibc uses several heaps,
/// and one small allocation can keep a whole heap in memory. If many threads allocate and free a lot of memory, the
/// process would therefore grow from term to term.
pub fn keep_one_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `mallopt` takes only integers, so there is no pointer that must stay valid. `mallopt` may be called at
    // any time.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        // 128 KiB is also glibc's initial value. But by default, glibc raises the value at run time. An explicit value
        // prevents this, so that large allocations are returned to the system as soon as they are freed.
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
    }
}
