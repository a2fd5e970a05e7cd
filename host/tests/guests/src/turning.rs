//! A tight loop that a benchmark runs in a guest, with and without epoch checks. The difference is the cost of the
//! epoch check in each iteration of a guest's loop.

pub fn turn_over(times: u64) -> u64 {
    (0..times).fold(1, |number: u64, turn| (number ^ turn).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23))
}
