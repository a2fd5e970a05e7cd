//! The heap of this process.

/// Makes the allocator return freed memory to the system, for the whole process. By default, glibc keeps several heaps,
/// and one small allocation keeps a whole heap in memory. If guests allocate and free much memory on changing threads,
/// the process would then grow from term to term.
pub fn keep_one_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `mallopt` takes only integers, so no pointer must stay valid, and it may be called at any time.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        // The initial value. Setting it stops glibc from raising it, so that large allocations are returned at once
        // when freed.
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
    }
}
