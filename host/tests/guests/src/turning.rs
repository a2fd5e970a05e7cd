//! A loop that does nothing else, the same for a guest and for what it is compared with: what is checked at each turn
//! shows.

/// Turns a number over so often.
pub fn turn_over(times: u64) -> u64 {
    (0..times).fold(1, |number: u64, turn| (number ^ turn).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23))
}
