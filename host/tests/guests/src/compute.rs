//! A computation that a benchmark runs both as a guest and natively.

/// Finds the primes below `limit` and mixes them into one number. Exercises memory, branches and arithmetic.
pub fn primes(limit: usize) -> u64 {
    let mut composite = vec![false; limit];
    let mut mixed = 0xcbf2_9ce4_8422_2325_u64;
    for n in 2..limit {
        if composite[n] {
            continue;
        }
        mixed = (mixed ^ n as u64).wrapping_mul(0x0100_0000_01b3).rotate_left(7);
        // If `n` exceeds the square root of `limit`, `n * n` could overflow a guest's 32-bit `usize`.
        if n <= limit / n {
            for multiple in (n * n..limit).step_by(n) {
                composite[multiple] = true;
            }
        }
    }
    mixed
}
