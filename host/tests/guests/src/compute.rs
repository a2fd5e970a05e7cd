//! A job for a processor, the same for a guest and for the program that it is compared with.

/// Counts the primes below `limit` and mixes them into one number: memory, branches and arithmetic.
pub fn primes(limit: usize) -> u64 {
    let mut composite = vec![false; limit];
    let mut mixed = 0xcbf2_9ce4_8422_2325_u64;
    for n in 2..limit {
        if composite[n] {
            continue;
        }
        mixed = (mixed ^ n as u64).wrapping_mul(0x0100_0000_01b3).rotate_left(7);
        // Beyond the root the square would not fit a guest's address.
        if n <= limit / n {
            for multiple in (n * n..limit).step_by(n) {
                composite[multiple] = true;
            }
        }
    }
    mixed
}
